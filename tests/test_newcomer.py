"""The newcomer's trial: CONTRIBUTING.md followed literally, and then with one step forgotten after another.

The page's nine files are put into a copy of the package. Contract suites must come to each of them by themselves and
pass; then each variant below forgets or breaks one thing, and must be told so in the sentence that the page shows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (src/tacit/\S+\.py)\n(.*?)```", PAGE, re.S))
KINDS = {
    "loss": "src/tacit/problem/log_cosh.py",
    "penalty": "src/tacit/problem/zero_sum.py",
    "row map": "src/tacit/maps/root.py",
    "sampling": "src/tacit/mechanism/strided.py",
    "theorem": "src/tacit/accounting/strided.py",
    "query": "src/tacit/release/queries/signs.py",
    "solver": "src/tacit/solvers/averaged.py",
    "estimator": "src/tacit/estimators/log_cosh.py",
    "place": "src/tacit/records/chunked.py",
}
SUITES = {
    "loss": ("problem/test_losses.py", "log-cosh", 5),
    "penalty": ("problem/test_penalties.py", "ZeroSum", 5),
    "row map": ("maps/test_row_maps.py", "Root", 3),
    "sampling": ("mechanism/test_samplings.py", "Strided", 6),
    "theorem": ("accounting/test_contract.py", "strided-composition", 10),
    "query": ("release/test_replay.py", "signs", 5),
    "solver": ("solvers/test_replay.py", "averaged", 3),
    "estimator": ("estimators/test_contract.py", "LogCosh", 2),
    "place": ("records/test_places.py", "Chunked", 7),
}
ALSO = {
    "mechanism/test_codec.py": "Strided",
    "solvers/test_audits.py": "averaged",
    "estimators/test_files.py": "LogCosh",
    "estimators/test_sklearn_contract.py": "LogCosh",
}
"""Further suites that must come to an example."""


@dataclass(frozen=True)
class Forgotten:
    """One step left out of an example, or done wrong.

    Attributes:
        kind: of the example.
        step: in the words of the page's table.
        old: what is replaced in the example, a regular expression.
        new: by what.
        told: what the sentence must say.
    """

    kind: str
    step: str
    old: str
    new: str
    told: str


METHOD = r"\n    (@\w+\n    )?def {}\(.*?(?=\n    (?:@|def)|\n*\Z)"
"""A method, up to the next one."""
TWICE = """
    def total(self, rows: Rows, state: Array, members: Any) -> Array:
        return 2 * (self.contributions(rows, state) * members[:, :, None]).sum(axis=1)
"""
SEEN = """
    def _fitted(self, planned: Any, solution: Any, table: Any) -> dict[str, Any]:
        return {**super()._fitted(planned, solution, table), "seen_": {1, 2}}
"""
FORGOTTEN = [
    Forgotten("loss", "no name", r"    name: .*\n", "", "states no name: write e.g. name = "),
    Forgotten("loss", "no bound on its curvature", r"    curvature = .*\n", "", "states no curvature: write e.g."),
    Forgotten("loss", "a name that is taken", '"log-cosh.*"', '"huber"', "a loss named 'huber' exists already"),
    Forgotten("loss", "no @described", "@described.*\n", "", "has no name in files: put @described("),
    Forgotten(
        "loss", "a field without a default", "    curvature", "    width: float\n    curvature", "give every field a"
    ),
    Forgotten("loss", "a wrong derivative", "return np.tanh", "return 2 * np.tanh", "is not that of its value(f, y)"),
    Forgotten(
        "loss", "a slope that is too small", "slope = 1.0", "slope = 0.5", "states slope = 0.5, and its derivative"
    ),
    Forgotten("loss", "a wrong curvature", "curvature = 1.0", "curvature = 3.0", "states curvature = 3, and"),
    Forgotten("loss", "it looks at other records", r"tanh\(f - y\)$", "tanh(f - y.mean())", "looks at several records"),
    Forgotten(
        "penalty", "no examples", METHOD.format("examples"), "", "gives no examples to the contract tests: write"
    ),
    Forgotten("penalty", "no @described", "@described.*\n", "", "has no name in files: put @described("),
    Forgotten(
        "penalty", "a wrong prox", r"return np.asarray\(v - ", "return np.asarray(v + ", "is not argmin ½‖w − v‖²"
    ),
    Forgotten(
        "penalty", "units that are ignored", "return replace.*", "return self", "is not v ↦ weight·value(scale·v)"
    ),
    Forgotten("row map", "no example", METHOD.format("example"), "", "does not define example: write it as RowMap"),
    Forgotten(
        "row map", "it looks at other rows", r"return np.sqrt\(", "return np.mean(X) + np.sqrt(", "a row differently"
    ),
    Forgotten(
        "row map", "a range that is too small", r"return Range\(np.sqrt\(", "return Range(1 + np.sqrt(", "leave [low,"
    ),
    Forgotten(
        "row map", "it writes into its input", r"return np.sqrt", "X *= 0\n        return np.sqrt", "writes into its"
    ),
    Forgotten("sampling", "no @described", "@described.*\n", "", "is in no registry: put @described("),
    Forgotten(
        "sampling", "no examples", METHOD.format("examples"), "", "gives no examples to the contract tests: write"
    ),
    Forgotten("sampling", "no assumption", "    assumption: .*\n", "", "states no assumption: write the sentence"),
    Forgotten("sampling", "too small an energy", "return max", "return 0.5 * max", "theorems would promise too much"),
    Forgotten(
        "sampling", "own randomness", r"np.arange\(n\)", "np.random.permutation(n)", "has randomness of its own: take"
    ),
    Forgotten("sampling", "a wrong period", "return self.stride\n", "return self.stride + 1\n", "states period = "),
    Forgotten("theorem", "no id", "    id = .*\n", "", "states no id: certificates show"),
    Forgotten(
        "theorem", "no examples", METHOD.format("examples"), "", "gives no example for the contract tests: write"
    ),
    Forgotten("query", "no @register", "@register.*\n", "", "is in no registry: decorate it with @register"),
    Forgotten("query", "no example", METHOD.format("example"), "", "does not define example: write it as"),
    Forgotten("query", "sums that are not clipped", r"\Z", TWICE, "times its declared sensitivity"),
    Forgotten("query", "a bound that is too large", r"np.sqrt\(self", "2 * np.sqrt(self", "never moves by more than"),
    Forgotten(
        "query", "it mixes records", r"np.sign\((.*)\)\n", r"np.sign(\1).cumsum(axis=0)\n", "mixes records: entry i"
    ),
    Forgotten("solver", "no name", "    name: .*\n", "", "states no name: write e.g. name = "),
    Forgotten(
        "solver",
        "an unknown need",
        "^    steps:",
        '    needs = ("konvex",)\n    steps:',
        "which is no property of losses",
    ),
    Forgotten("solver", "no @described", "@described.*\n", "", "has no name in files: put @described("),
    Forgotten(
        "solver",
        "a plan that costs too much",
        "return budget.shares",
        "return type(budget)(9, 0.1).shares",
        "costs ε = ",
    ),
    Forgotten(
        "estimator", "no __init__", METHOD.format("__init__"), "", "has no __init__ of its own, so that it is not"
    ),
    Forgotten("estimator", "no loss", "    default_loss.*\n", "", "states no loss: write default_loss = "),
    Forgotten("estimator", "an attribute that no file holds", r"\Z", SEEN, "cannot be saved: a set cannot be written"),
    Forgotten("place", "no example", METHOD.format("example"), "", "does not define example: write it as Records"),
    Forgotten("place", "records left out", r"range\(0", "range(self._rows", "does not hand out all records"),
    Forgotten(
        "place", "through that changes itself", r"copy.copy\(self\)", "self", "leave the view that it was called on"
    ),
    Forgotten(
        "place",
        "through that reads",
        "        out = copy",
        "        features(self._X)\n        out = copy",
        "not paid for yet",
    ),
]


def variant(number: int) -> str:
    """An example with one step forgotten, under names of its own."""
    forgotten = FORGOTTEN[number]
    text = FILES[KINDS[forgotten.kind]]
    found = re.compile(forgotten.old, re.S if "def " in forgotten.old else re.M)
    assert found.search(text), forgotten
    text = found.sub(lambda match: match.expand(forgotten.new.replace("\n", "\\n")), text, count=1)
    (name,) = re.findall(r"^class (\w+)", text, re.M)
    text = re.sub(rf"\b{name}\b", f"{name}Odd{number}", text)
    text = re.sub(r'(@described|@register)\("([\w-]+)"\)', rf'\1("\2-odd{number}")', text)
    return re.sub(r'((?:name: ClassVar\[str\]|    id) = )"(?!huber)([\w-]+)"', rf'\1"\2-odd{number}"', text)


def environment(house: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(house / "src"), "TACIT_STATE_DIR": str(house / "state")}


def run(house: Path, words: str, *suites: str) -> dict[str, str]:
    """Run the suites on the package in ``house``: "passed", or what is said, by test."""
    report = house / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--continue-on-collection-errors",
        f"--junitxml={report}",
    ]
    paths = [str(ROOT / "tests" / suite) for suite in suites]
    done = subprocess.run(
        [*command, "-k", words, *paths], capture_output=True, text=True, cwd=ROOT, env=environment(house), check=False
    )
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    out = {}
    for case in ElementTree.parse(report).iter("testcase"):
        said = [f"{found.get('message')}\n{found.text}" for tag in ("failure", "error") for found in case.iter(tag)]
        out[f"{case.get('classname')}::{case.get('name')}"] = "\n".join(said) or "passed"
    return out


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the nine files of the page."""
    folder = tmp_path_factory.mktemp("house")
    for name in ("src", "tools"):
        shutil.copytree(ROOT / name, folder / name)  # with what numba has compiled, so that nothing is compiled again
    (folder / "docs").mkdir()
    for path, text in FILES.items():
        assert not (folder / path).exists(), f"{path} is taken: choose another example"
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def test_the_page_has_one_file_for_each_kind() -> None:
    assert set(FILES) == set(KINDS.values())
    for kind, path in KINDS.items():
        assert f"| {kind} | `{path}` | {len(FILES[path].splitlines())} |" in PAGE


def test_every_suite_comes_to_the_examples_and_is_content(house: Path) -> None:
    suites = [suite for suite, _, _ in SUITES.values()]
    names = {name for _, name, _ in SUITES.values()} | set(ALSO.values())
    found = run(house, " or ".join(sorted(names)), *suites, *ALSO)
    assert {test: said for test, said in found.items() if said != "passed"} == {}
    for suite, name, least in SUITES.values():
        module = suite.removesuffix(".py").replace("/", ".")
        came = [test for test in found if module in test and name.lower() in test.lower()]
        assert len(came) >= least, (suite, came)
    for suite, name in ALSO.items():
        module = suite.removesuffix(".py").replace("/", ".")
        assert any(module in test and name in test for test in found), suite


def test_the_catalogue_has_their_rows(house: Path) -> None:
    tool = [sys.executable, str(house / "tools" / "catalogue.py")]
    check = subprocess.run([*tool, "--check"], capture_output=True, text=True, env=environment(house), check=False)
    assert check.stderr.startswith("docs/catalogue.md is not up to date (")
    assert check.stderr.endswith("): run python tools/catalogue.py\n")
    subprocess.run(tool, env=environment(house), check=True)
    page = (house / "docs" / "catalogue.md").read_text(encoding="utf-8")
    for row in (
        "DPLogCoshRegressor` · `--model logcosh",
        "log-cosh",
        "ZeroSum",
        "Root",
        "Strided",
        "signs",
        "averaged",
    ):
        assert f"| `{row}` | " in page
    assert "| `Chunked` | " in page
    assert "| `strided-composition` | " in page


DEFINE = """
import json, sys, types
said = []
for text in json.load(sys.stdin):
    module = sys.modules["newcomer"] = types.ModuleType("newcomer")
    try:
        exec(compile(text, "newcomer.py", "exec"), vars(module))
        said.append(None)
    except Exception as error:
        said.append(str(error))
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def answers(house: Path) -> list[str]:
    """What each variant is told: by Python when it is defined, or else by the suites."""
    texts = [variant(number) for number in range(len(FORGOTTEN))]
    done = subprocess.run(
        [sys.executable, "-c", DEFINE],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        env=environment(house),
        check=True,
    )
    said = json.loads(done.stdout)
    for number, text in enumerate(texts):
        if said[number] is None:
            folder = (house / KINDS[FORGOTTEN[number].kind]).parent
            (folder / f"odd{number}.py").write_text(text, encoding="utf-8")
    words = "odd or gets_these_tests or comes_to_every_map or is_replayed"
    suites = [suite for suite, _, _ in SUITES.values()]
    found = run(house, words, *suites, "mechanism/test_codec.py", "estimators/test_files.py")
    for number, one in enumerate(said):
        if one is None:
            odd = re.compile(rf"odd{number}\b", re.I)
            told = [f"{test}: {text}" for test, text in found.items() if text != "passed"]
            said[number] = "\n".join(text for text in told if odd.search(text)) or "nothing"
    return said


@pytest.mark.parametrize("number", range(len(FORGOTTEN)), ids=[f"{one.kind}: {one.step}" for one in FORGOTTEN])
def test_a_forgotten_step_is_told_in_a_sentence(number: int, answers: list[str]) -> None:
    forgotten = FORGOTTEN[number]
    assert forgotten.told in answers[number]
    row = re.search(rf"^\| {forgotten.kind} \| {re.escape(forgotten.step)} \| (.*) \|$", PAGE, re.M)
    assert row, f"the table of the page lacks {forgotten.kind}: {forgotten.step}"
    assert forgotten.told.strip() in row[1].replace("`", "")
