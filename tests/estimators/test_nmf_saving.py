"""Factorisations on disk: factors to the bit, the plan made again and compared, nothing that was not released."""

from __future__ import annotations

import base64
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from typer.testing import CliRunner

from tacit import DPNMF, Ledger, load_model, save_model
from tacit._codec import decode, digest, encode
from tacit.cli import app
from tacit.errors import InvalidInput
from tacit.estimators import saving
from tacit.solvers import factorise as solver
from tacit.solvers.schedules import Optimised

RNG = np.random.default_rng(0)
X = RNG.gamma(0.5, size=(300, 3)) @ RNG.gamma(0.5, size=(3, 12))
HOLES = np.where(RNG.random(X.shape) < 0.3, np.nan, X)
COMMON = {"epsilon": 2.0, "delta": 1e-5, "row_norm": 2.0, "epochs": 4, "random_state": 3}
MODELS = {
    "as it comes": DPNMF(3, **COMMON),
    "gradient": DPNMF(3, update="gradient", l1=1e-4, step_size=2.0, **COMMON),
    "statistics": DPNMF(2, update="statistics", batch_size=60, l2=1e-3, **COMMON),
    "cyclic": DPNMF(3, batch_size=70, noise_schedule="linear", **COMMON),
    "poisson": DPNMF(3, sampling="poisson", batch_size=30, noise_schedule="constant", **COMMON),
    "zero-out": DPNMF(3, adjacency="zero-out", noise_schedule="step", contribution_norm=0.1, **COMMON),
    "both": DPNMF(3, release="both", person_share=0.3, **COMMON),
    "half-life": DPNMF(3, noise_schedule=Optimised(1.5), **COMMON),
    "no half-life": DPNMF(3, noise_schedule=Optimised(), noise_threshold=1.0, **COMMON),
    "unobserved": DPNMF(3, missing="unobserved", person_l2=0.1, unit="customer", init_seed=5, **COMMON),
}


def again(model: DPNMF, folder: Path) -> DPNMF:
    save_model(model, folder / "model.json")
    assert [p.name for p in folder.iterdir()] == ["model.json"]
    return load_model(folder / "model.json")


def alike(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", MODELS)
def test_factors_come_back_to_the_bit(name: str, tmp_path: Path) -> None:
    table = HOLES if name == "unobserved" else X
    model = clone(MODELS[name]).fit(table)
    loaded = again(model, tmp_path)
    assert type(loaded) is DPNMF
    assert vars(loaded).keys() == vars(model).keys()
    assert alike(loaded.components_, model.components_)
    assert hasattr(loaded, "person_factors_") == (name == "both")
    if name == "both":
        assert alike(loaded.person_factors_, model.person_factors_)
    for rows in (table, table[:7].astype(np.float32)):
        assert alike(loaded.transform(rows), model.transform(rows))
    assert loaded.top_items(4) == model.top_items(4)
    assert loaded.certificate_ == model.certificate_ == loaded.plan_.certificate
    assert alike(loaded.plan_.ratio, model.plan_.ratio)
    assert alike(loaded.plan_.blocks[0].start, model.plan_.blocks[0].start)
    assert loaded.plan_.describe(1e-5) == model.plan_.describe(1e-5)
    assert (loaded.plan_.n, loaded.plan_.n_batches) == (model.plan_.n, model.plan_.n_batches)
    kept = {k: v for k, v in loaded.get_params(deep=False).items() if k not in saving.NOT_KEPT}
    assert kept == {k: v for k, v in model.get_params(deep=False).items() if k in kept}
    refit = loaded.set_params(random_state=3).fit(table)
    assert alike(refit.components_, model.components_)  # parameters are whole, too


def test_names_of_items_and_sparse_tables(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=[f"ä{i}" for i in range(12)])
    loaded = again(DPNMF(3, **COMMON).fit(frame), tmp_path)
    assert loaded.feature_names_in_.tolist() == list(frame.columns)
    assert all(item.startswith("ä") for topic in loaded.top_items() for item in topic)
    table = sparse.csr_matrix(np.where(X > 0.3, X, 0.0))
    model = DPNMF(np.int64(3), **COMMON | {"row_norm": np.float64(2)}).fit(table)
    assert alike(again(model, tmp_path).transform(table), model.transform(table))


def test_many_items(tmp_path: Path) -> None:
    model = DPNMF(20, epochs=1, epsilon=1.0, delta=1e-5, row_norm=1.0).fit(RNG.random((30, 20_000)))
    loaded = again(model, tmp_path)
    assert alike(loaded.components_, model.components_)
    assert (tmp_path / "model.json").stat().st_size < 1.4 * model.components_.nbytes


def test_a_file_holds_what_was_released_and_nothing_else(tmp_path: Path) -> None:
    for name, fitted in (("as it comes", set()), ("both", {"person_factors_"})):
        model = clone(MODELS[name]).set_params(budget=Ledger(tmp_path / f"{name}.ledger", 9.0, 1e-3)).fit(X)
        save_model(model, tmp_path / "m.json")
        document = json.loads((tmp_path / "m.json").read_text())
        assert document["fitted"].keys() == {"components_", "n_features_in_"} | fitted
        assert document["public"].keys() == {"blocks", "plan", "start"}
        assert document["public"]["plan"] == {"n": 300}
        assert document["parameters"].keys() == model.get_params(deep=False).keys() - {"budget", "random_state"}


# -- what is not saved ------------------------------------------------------------------------------------------------


def test_a_schedule_of_the_users_own_is_refused_in_one_line(tmp_path: Path) -> None:
    model = DPNMF(3, noise_schedule=lambda epoch, batch: 1.0 + epoch, **COMMON).fit(X)
    with pytest.raises(InvalidInput, match=r"noise_schedule is a function.*cannot hold.*Optimised") as caught:
        save_model(model, tmp_path / "m.json")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())

    class Own(Optimised):
        def variances(self, epochs, n_batches):
            return np.ones((epochs, n_batches))

    with pytest.raises(InvalidInput, match="noise_schedule"):
        save_model(DPNMF(3, noise_schedule=Own(), **COMMON).fit(X), tmp_path / "m.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 5},
        {"batch_size": 100},
        {"noise_schedule": "constant"},
        {"noise_schedule": Optimised(2.0)},
        {"n_components": 2},
        {"sampling": "poisson", "batch_size": 30},
        {"adjacency": "zero-out"},
        {"epsilon": 1.0},
        {"unit": "document"},
        {"release": "both"},
        {"update": "gradient"},
        {"update": "statistics"},
        {"l1": 0.1},
        {"noise_threshold": 1.0},
        {"contribution_norm": 0.5},
        {"init_seed": 1},
    ],
    ids=lambda change: " ".join(map(str, change.items())),
)
def test_parameters_that_changed_after_the_fit_are_noticed(change: dict, tmp_path: Path) -> None:
    model = DPNMF(3, **COMMON).fit(X)
    with pytest.raises(InvalidInput, match=r"after fit|init_seed|was changed"):
        save_model(model.set_params(**change), tmp_path / "m.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", [{"step_size": 1.0}, {"l2": 0.1}, {"l1": 0.1}])
def test_a_changed_step_is_noticed(change: dict, tmp_path: Path) -> None:
    model = DPNMF(3, update="gradient", **COMMON).fit(X)
    with pytest.raises(InvalidInput, match="after fit"):
        save_model(model.set_params(**change), tmp_path / "m.json")


def test_broken_models_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not fitted"):
        save_model(DPNMF(3, **COMMON), tmp_path / "m.json")
    for value in (np.nan, np.inf, -1.0):
        model = DPNMF(3, **COMMON).fit(X)
        model.components_[1, 2] = value
        with pytest.raises(InvalidInput, match="components_"):
            save_model(model, tmp_path / "m.json")
    model = DPNMF(3, **COMMON).fit(X)
    model.person_factors_ = model.transform(X)  # without noise
    with pytest.raises(InvalidInput, match="person_factors_"):
        save_model(model, tmp_path / "m.json")
    assert not list(tmp_path.iterdir())


# -- what is not loaded -----------------------------------------------------------------------------------------------


def saved(name: str, path: Path) -> dict:
    save_model(clone(MODELS[name]).fit(X), path)
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def document(tmp_path_factory) -> dict:
    return saved("cyclic", tmp_path_factory.mktemp("whole") / "m.json")


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> dict:
    return saved("both", tmp_path_factory.mktemp("whole") / "m.json")


def refused(document: dict, folder: Path) -> str:
    document["digest"] = saving._digest(document)
    path = folder / "m.json"
    path.write_text(json.dumps(document))
    tracemalloc.start()
    with pytest.raises(InvalidInput) as caught:
        load_model(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**25, f"a file of {path.stat().st_size} bytes took {peak / 2**20:.0f} MB"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return str(caught.value)


def changed(document: dict, path: tuple, value: object) -> dict:
    out = json.loads(json.dumps(document))
    place = out
    for key in path[:-1]:
        place = place[key]
    if value is None and path[-1] in place:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return out


ZEROS = {"array": [0.0] * 36, "dtype": "float64", "shape": [3, 12]}
HOLED = {**ZEROS, "base64": base64.b64encode(np.full(36, np.nan).tobytes()).decode()}
del HOLED["array"]
FORGED = {
    "a smaller promise": (("parameters", "epsilon"), 1e-3, "promise"),
    "a smaller delta": (("parameters", "delta"), 1e-12, "promise"),
    "another relation": (("parameters", "adjacency"), "zero-out", "adjacency"),
    "a smaller claim": (("certificate", "claim", "epsilon"), 1e-3, "claims"),
    "another unit": (("parameters", "unit"), "word", "plan"),
    "other steps": (("parameters", "epochs"), 5, "steps"),
    "immensely many steps": (("parameters", "epochs"), 10**12, "steps"),
    "other batches": (("parameters", "batch_size"), 60, "steps"),
    "tiny batches": (("parameters", "batch_size"), 1, "steps"),
    "no batches": (("parameters", "batch_size"), 0, "batch_size"),
    "other sampling": (("parameters", "sampling"), "poisson", "plan"),
    "another schedule": (("parameters", "noise_schedule"), "step", "plan"),
    "no such schedule": (("parameters", "noise_schedule"), "sinking", "noise_schedule"),
    "code for a schedule": (("parameters", "noise_schedule"), {"type": "os.system", "fields": {}}, ""),
    "a negative half-life": (("parameters", "noise_schedule"), {"optimised": -1.0}, "half_life"),
    "words for a half-life": (("parameters", "noise_schedule"), {"optimised": "x"}, "half_life"),
    "more records": (("public", "plan", "n"), 10**9, "steps"),
    "no records": (("public", "plan", "n"), 0, "n"),
    "no plan": (("public", "plan"), None, ""),
    "nothing public": (("public",), None, ""),
    "no start": (("public", "start"), None, ""),
    "a short start": (("public", "start"), [[0.0]], "start"),
    "another start": (("parameters", "init_seed"), 9, "start"),
    "more components": (("parameters", "n_components"), 4, "components_"),
    "immensely many components": (("parameters", "n_components"), 2**45, "components_"),
    "more items": (("fitted", "n_features_in_"), 13, "components_"),
    "immensely many items": (("fitted", "n_features_in_"), 2**45, "components_"),
    "no items": (("fitted", "n_features_in_"), 0, "n_features_in_"),
    "no factors": (("fitted", "components_"), None, "components_"),
    "words for factors": (("fitted", "components_"), {"array": ["x"] * 36, "dtype": "str", "shape": [3, 12]}, "comp"),
    "NaN": (("fitted", "components_"), HOLED, "NaN"),
    "infinite factors": (("fitted", "components_", "array"), ["inf"] + [0.0] * 35, "components_"),
    "negative factors": (("fitted", "components_", "array"), [-0.1] + [0.0] * 35, "components_"),
    "half of the factors": (("fitted", "components_", "array"), [0.0] * 18, "shape"),
    "people's factors": (("fitted", "person_factors_"), ZEROS, "person_factors_"),
    "a plan of its own": (("fitted", "plan_"), 5, "attribute"),
    "a certificate of its own": (("fitted", "certificate_"), 5, "attribute"),
    "a release that was not paid for": (("parameters", "release"), "both", "person_factors_"),
    "no norm": (("parameters", "row_norm"), None, "row_norm"),
    "a strange update": (("parameters", "update"), "magic", "update"),
    "the update of another plan": (("parameters", "update"), "gradient", "plan"),
    "a seed": (("parameters", "random_state"), 3, "parameter"),
    "the last model": (("parameters", "view"), "final_model", "view"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_file_with_a_good_digest_is_refused(name: str, document: dict, tmp_path: Path) -> None:
    path, value, words = FORGED[name]
    assert words in refused(changed(document, path, value), tmp_path)


def test_the_file_that_is_forged_is_good(document: dict, both: dict, tmp_path: Path) -> None:
    for one in (document, both):
        (tmp_path / "m.json").write_text(json.dumps(one))
        load_model(tmp_path / "m.json")


@pytest.mark.parametrize("count", [299, 301, 10**9])
def test_as_many_people_as_there_are_factors(count: int, both: dict, tmp_path: Path) -> None:
    assert "person_factors_" in refused(changed(both, ("public", "plan", "n"), count), tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("parameters", "person_share"), 0.5, "plan"),
        (("parameters", "person_share"), 1.0, "person_share"),
        (("parameters", "release"), "items", "person_factors_"),
        (("fitted", "person_factors_"), None, "person_factors_"),
        (("fitted", "person_factors_", "shape"), [3, 300], "person_factors_"),
    ],
)
def test_people_s_factors_are_those_that_were_paid_for(
    path: tuple, value: object, words: str, both: dict, tmp_path: Path
) -> None:
    assert words in refused(changed(both, path, value), tmp_path)


def certified_anew(document: dict, edit) -> dict:
    """As by somebody who can write a certificate's digest, too."""
    out = json.loads(json.dumps(document))
    certificate = out["certificate"]
    edit(certificate)
    plan = decode(certificate["plan"], limit=np.inf)
    certificate["plan"] = encode(plan)
    certificate["digest"] = digest((plan, tuple(certificate["marks"]), tuple(certificate["only"])))
    return out


def test_a_certificate_of_more_noise_is_refused(document: dict, tmp_path: Path) -> None:
    """It says ε = 0.2 of its own plan, truly; but not every ratio is that of the schedule which ran."""

    def first_step_free(certificate: dict) -> None:
        certificate["plan"]["parts"][0]["ratio"]["schedule"]["values"][0] *= 0.1

    assert "plan" in refused(certified_anew(document, first_step_free), tmp_path)


def test_a_certificate_without_its_words_is_refused(document: dict, tmp_path: Path) -> None:
    def silent(certificate: dict) -> None:
        certificate["marks"] = ["not private: seeded"]

    assert "promise" in refused(certified_anew(document, silent), tmp_path)


@pytest.mark.parametrize("steps", [10**8, 10**9, 10**11])
def test_a_long_run_in_a_short_file_is_not_laid_out(steps: int, document: dict, tmp_path: Path) -> None:
    """Two values that stand for gigabytes of steps; loading must say no before it certifies them."""

    def long(certificate: dict) -> None:
        part = certificate["plan"]["parts"][0]
        part["ratio"]["schedule"] = {"values": [1e-9, 2e-9], "counts": [steps // 2, steps // 2]}
        part["steps"] = steps

    out = certified_anew(document, long)
    assert "steps" in refused(changed(out, ("parameters", "epochs"), steps // 4), tmp_path)


def test_an_edit_is_noticed(document: dict, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(json.dumps(changed(document, ("parameters", "row_norm"), 1.0)))
    with pytest.raises(InvalidInput, match="edited"):
        load_model(tmp_path / "m.json")


def test_a_change_of_the_generator_is_noticed(document: dict, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "m.json").write_text(json.dumps(document))
    honest = solver.public_rows

    def other(components, items, seed):
        out = honest(components, items, seed)
        out[-1, -1] += 1e-3  # one number of all
        return out

    monkeypatch.setattr(solver, "public_rows", other)
    with pytest.raises(InvalidInput, match="start is not the one"):
        load_model(tmp_path / "m.json")


def test_another_machine_may_round_otherwise(document: dict, tmp_path: Path) -> None:
    """Ratios a few units in the last place away are those of the certificate; ε comes from the certificate alone."""

    def rounded(certificate: dict) -> None:
        schedule = certificate["plan"]["parts"][0]["ratio"]["schedule"]
        schedule["values"] = [value * (1 + 4e-16 * (-1) ** i) for i, value in enumerate(schedule["values"])]

    out = certified_anew(document, rounded)
    out["digest"] = saving._digest(out)
    (tmp_path / "m.json").write_text(json.dumps(out))
    loaded = load_model(tmp_path / "m.json")
    stated = loaded.certificate_.plan.parts[0].ratio.to_array()
    assert alike(loaded.plan_.ratio.ravel(), stated)
    assert out["certificate"]["plan"] != document["certificate"]["plan"]


def test_the_commands_are_kind(document: dict, tmp_path: Path) -> None:
    path, table = tmp_path / "m.json", tmp_path / "t.csv"
    path.write_text(json.dumps(document))
    table.write_text("a,b\n1,2\n")
    told = CliRunner().invoke(app, ["report", str(path)])
    assert told.exit_code == 0
    assert "joint (billboard)" in " ".join(told.output.split())
    said = CliRunner().invoke(app, ["predict", str(path), str(table)])
    assert said.exit_code != 0
    assert "load_model" in " ".join((said.output + str(said.exception)).split())
