"""gRPC with mutual TLS: who may ask, who answers, what is carried, and what happens when a line is cut."""

from __future__ import annotations

import stat
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from relay import Relay

from tacit.errors import InvalidInput
from tacit.federation import (
    TLS,
    FactorNode,
    FederatedNMF,
    FederationError,
    LinkLost,
    connect,
    make_trial_certificates,
    serve_node,
    threaded_nodes,
)
from tacit.federation.wire import decode, encode

grpc = pytest.importorskip("grpc")
pytest.importorskip("cryptography")
TERMS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_norm": 4.0}
HERE = "127.0.0.1:0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_trial_certificates(tmp_path_factory.mktemp("trial") / "certificates", ["a", "b"])


def rows(n: int = 30) -> Any:
    return np.random.default_rng(n).poisson(1.0, (n, 6)).astype(float)


def node(n: int = 30, **terms: Any) -> FactorNode:
    return FactorNode(rows(n), **{**TERMS, "random_state": n, **terms})


def fit(links: Any, **settings: Any) -> Any:
    return FederatedNMF(**{"n_components": 2, "epochs": 3, "timeout": 20.0, **settings}).fit(links)


def test_the_same_model_as_without_a_network(folder: Path) -> None:
    with threaded_nodes([node(30), node(40)]) as links:
        plain = fit(links)
    server = TLS.read(folder, "server")
    with (
        serve_node(node(30), HERE, tls=TLS.read(folder, "a")) as a,
        serve_node(node(40), HERE, tls=TLS.read(folder, "b")) as b,
        connect(a.address, tls=server, node="a") as one,
        connect(b.address, tls=server, node="b") as two,
    ):
        model = fit([one, two])
        assert np.array_equal(model.components_, plain.components_)
        with connect(a.address, tls=server, node="a") as again, pytest.raises(InvalidInput, match="are the same node"):
            fit([one, again])
    with pytest.raises(LinkLost, match="closed"):
        fit([one])


@pytest.mark.parametrize(
    ("name", "asked"), [("b", "a"), ("server", "b")], ids=["a node asks a node", "an address that is another node's"]
)
def test_strangers_are_not_spoken_to(folder: Path, name: str, asked: str) -> None:
    with (
        serve_node(node(), HERE, tls=TLS.read(folder, "a")) as server,
        connect(server.address, tls=TLS.read(folder, name), node=asked) as link,
        pytest.raises(LinkLost, match="nothing was spent"),
    ):
        fit([link], timeout=2.0)


def test_another_authority_is_not_believed(folder: Path, tmp_path: Path) -> None:
    other = make_trial_certificates(tmp_path / "other", ["a"])
    for here, there in ((folder, other), (other, folder)):
        with (
            serve_node(node(), HERE, tls=TLS.read(here, "a")) as server,
            connect(server.address, tls=TLS.read(there, "server"), node="a") as link,
            pytest.raises(LinkLost, match="nothing was spent"),
        ):
            fit([link], timeout=2.0)


def test_without_tls_nothing_is_answered(folder: Path) -> None:
    with serve_node(node(), HERE, tls=TLS.read(folder, "a")) as server:
        plain = grpc.insecure_channel(server.address)
        with pytest.raises(grpc.RpcError):
            plain.unary_unary("/tacit.Node/Ask")(encode("describe"), timeout=2)
        plain.close()
        anonymous = grpc.secure_channel(
            server.address,
            grpc.ssl_channel_credentials(TLS.read(folder, "server").authority),
            options=[("grpc.ssl_target_name_override", "a")],
        )
        with pytest.raises(grpc.RpcError):
            anonymous.unary_unary("/tacit.Node/Ask")(encode("describe"), timeout=2)
        anonymous.close()


def test_only_the_named_server_may_ask(folder: Path, tmp_path: Path) -> None:
    with (
        serve_node(node(), HERE, tls=TLS.read(folder, "a"), server_name="hospital") as server,
        connect(server.address, tls=TLS.read(folder, "server"), node="a") as link,
        pytest.raises(FederationError, match="only 'hospital' may ask this node"),
    ):
        fit([link])


def test_long_messages_are_not_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.federation.transport.LIMITS", (("grpc.max_receive_message_length", 10_000),))
    with (
        serve_node(node(), HERE, tls=TLS.read(folder, "a")) as server,
        connect(server.address, tls=TLS.read(folder, "server"), node="a") as link,
        pytest.raises(LinkLost),
    ):
        link.submit(b"x" * 20_000, 1.0).result()


def test_a_line_that_is_cut_is_taken_up_again(folder: Path) -> None:
    """Before the question, after the node has answered, and for a while: the same bits as without a fault."""
    with threaded_nodes([node()]) as links:
        plain = fit(links)
    asked: list[str] = []

    def answer(desk: Any, raw: bytes, caller: str) -> bytes:
        asked.append(decode(raw).kind)
        out = desk(raw, caller)
        if len(asked) in (1, 4, 6):
            proxy.cut()  # the answer is lost
        return out

    with serve_node(node(), HERE, tls=TLS.read(folder, "a"), answer=answer) as server:
        proxy = Relay(server.address)
        with connect(proxy.address, tls=TLS.read(folder, "server"), node="a") as link:
            model = fit([link])
        proxy.close()
    assert asked.count("step") > 3, "some questions came twice"
    assert np.array_equal(model.components_, plain.components_)


def test_a_silent_line_ends_at_the_deadline(folder: Path) -> None:
    with serve_node(node(), HERE, tls=TLS.read(folder, "a")) as server:
        proxy = Relay(server.address)
        proxy.mute = True
        start = time.monotonic()
        with connect(proxy.address, tls=TLS.read(folder, "server"), node="a") as link, pytest.raises(LinkLost):
            fit([link], timeout=1.0)
        assert time.monotonic() - start < 10
        proxy.mute = False
        proxy.close()


# -- certificates ---------------------------------------------------------------------------------------------------


def test_keys_are_for_their_owner_alone(folder: Path, tmp_path: Path) -> None:
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert set(files) == {"authority.pem", *(f"{n}.{end}" for n in ("server", "a", "b") for end in ("pem", "key"))}
    assert set(files.values()) == {0o600}, "the authority's own key is not kept"
    assert "PRIVATE" not in repr(TLS.read(folder, "a"))
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "a.key").chmod(0o644)
    with pytest.raises(InvalidInput, match="can be read by others"):
        TLS.read(copy, "a")
    with pytest.raises(InvalidInput, match="No such file"):
        TLS.read(folder, "c")


@pytest.mark.parametrize(
    "nodes", ["ab", [], ["A"], ["a", "a"], ["server"], ["authority"], ["../a"], ["a b"], [3]], ids=str
)
def test_names_of_parties(nodes: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        make_trial_certificates(tmp_path / "x", nodes)


def test_certificates_are_not_overwritten(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"certificates in .* already"):
        make_trial_certificates(folder, ["a"])


@pytest.mark.parametrize(
    ("address", "name", "words"),
    [(3, "a", "host and port"), ("localhost", "a", "host and port"), ("localhost:1", "", "name in the node's")],
)
def test_addresses_and_names_are_checked(folder: Path, address: Any, name: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        connect(address, tls=TLS.read(folder, "server"), node=name)


def test_without_the_extra_the_way_to_it_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tls = TLS.read(folder, "a")
    for name in ("grpc", "cryptography.hazmat.primitives"):
        monkeypatch.setitem(sys.modules, name, None)
    for call in (
        lambda: serve_node(node(), HERE, tls=tls),
        lambda: connect("localhost:1", tls=tls, node="a"),
        lambda: make_trial_certificates(tmp_path / "x", ["a"]),
    ):
        with pytest.raises(InvalidInput, match=r"is not installed: pip install 'tacit-dp\[federation\]'"):
            call()


def test_what_is_served_is_checked(folder: Path) -> None:
    tls = TLS.read(folder, "a")
    with pytest.raises(InvalidInput, match=r"node\[0\] must be a FactorNode"):
        serve_node(rows(), HERE, tls=tls)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="tls must be a TLS"):
        serve_node(node(), HERE, tls=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="patience"):
        serve_node(node(), HERE, tls=tls, patience=0)
    with pytest.raises(InvalidInput, match="cannot be listened at"):
        serve_node(node(), "no.such.host.invalid:1", tls=tls)
