"""The command line and its demo: short runs, the full one, and everything it refuses."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from differences import assert_gradient, assert_gradient_along

import rnnop
from rnnop.cli import COMMANDS, main
from rnnop.cli.demo import classifier
from rnnop.cli.demo.classifier import Adam, Model, Utterances

PNG = b"\x89PNG\r\n\x1a\n"


def demo(*options: str) -> int:
    return main(["demo", "--epochs", "3", *options])


def assert_is_plot(path: Path) -> None:
    content = path.read_bytes()
    assert content.startswith(PNG)
    assert len(content) > 20_000  # an empty figure has a few thousand bytes


def assert_is_result(result: dict[str, Any], epochs: int, plot: Path) -> None:
    assert result["rnnop"] == rnnop.__version__
    assert result["backend"] in rnnop.backends.BACKENDS
    assert (result["epochs"], result["seed"], result["plot"]) == (epochs, 0, str(plot))
    assert result["seconds"] > 0
    assert result["padding"] == {"steps": [24, 29], "largest_difference": 0.0}
    assert len(result["history"]) == epochs
    last = result["history"][-1]
    assert result["training_accuracy"] == last["training_accuracy"]
    assert result["test_accuracy"] == last["test_accuracy"]


def in_float64(model: Model) -> Model:
    def cast(array: Any) -> Any:
        return array.astype(np.float64)

    return Model(model.rnn.map(cast), cast(model.head), cast(model.bias))


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "plot.png"
    assert demo("--json", "--output", str(plot)) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert_is_result(result, 3, plot)
    assert_is_plot(plot)
    losses = [epoch["loss"] for epoch in result["history"]]
    assert losses[0] < np.log(9)  # of a guess
    assert losses[2] < losses[1] < losses[0]
    assert result["test_accuracy"] > 0.85
    lines = [line for line in err.splitlines() if line.startswith("epoch ")]
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]


def test_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert demo("--seed", "1") == 0
    titles = [line[:15].rstrip() for line in capsys.readouterr().out.splitlines()]
    assert titles == ["utterances", "network", "test accuracy", "time", "padding", "plot"]
    assert_is_plot(tmp_path / "rnnop-demo.png")


def test_bar_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    assert demo("--output", str(tmp_path / "plot.png")) == 0
    shown = sys.stderr.getvalue()
    assert "3/3" in shown
    assert "epoch/s" in shown or "s/epoch" in shown
    assert "epoch 1/3" not in shown


def test_seed_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    histories = []
    for seed in ("7", "7", "8"):
        options = ["--epochs", "1", "--json", "--seed", seed, "--output", str(tmp_path / "p.png")]
        assert main(["demo", *options]) == 0
        histories.append(json.loads(capsys.readouterr().out)["history"])
    assert histories[0] == histories[1]
    assert histories[0] != histories[2]


@pytest.mark.slow
def test_full_run(tmp_path: Path) -> None:
    """The whole as a user starts it, with one BLAS thread because tests run beside each other."""
    plot = tmp_path / "plot.png"
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    done = subprocess.run(
        [sys.executable, "-m", "rnnop", "demo", "--json", "--output", str(plot)],
        env={**os.environ, **threads},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert_is_result(result, 60, plot)
    assert_is_plot(plot)
    assert result["test_accuracy"] >= 0.96


def test_data() -> None:
    training, test = classifier.load()
    assert (len(training.recordings), len(test.recordings)) == (270, 370)
    assert np.bincount(training.speakers).tolist() == [30] * 9
    assert np.bincount(test.speakers).tolist() == [31, 35, 88, 44, 29, 24, 40, 50, 29]
    for part, longest in ((training, 26), (test, 29)):
        assert [len(recording) for recording in part.recordings] == part.lengths.tolist()
        assert (part.lengths.min(), part.lengths.max()) == (7, longest)
    steps = np.concatenate(training.recordings)
    assert steps.dtype == np.float32
    np.testing.assert_allclose(steps.mean(axis=0), np.zeros(12), atol=1e-5)
    np.testing.assert_allclose(steps.std(axis=0), np.ones(12), atol=1e-5)


def test_gradients() -> None:
    """Of the bias entry by entry, of every matrix along random directions."""
    generator = np.random.default_rng(0)
    model = in_float64(classifier.init_model(0))
    model.head[:] = generator.normal(size=model.head.shape)
    model.bias[:] = generator.normal(size=model.bias.shape)
    training, _ = classifier.load()
    some = training.pick([200, 3, 77])
    batch = Utterances([x.astype(np.float64) for x in some.recordings], *some[1:])
    assert len(set(batch.lengths.tolist())) == 3
    _, gradients = classifier.loss_and_gradients(model, batch)

    def loss_with(name: str) -> Any:
        def loss(value: Any) -> Any:
            return np.array(
                [classifier.loss_and_gradients(model._replace(**{name: value}), batch)[0]]
            )

        return loss

    assert_gradient("bias", gradients.bias, loss_with("bias"), model.bias)
    for direction in generator.normal(size=(20, *model.head.shape)):
        assert_gradient_along("head", gradients.head, loss_with("head"), model.head, direction)

    got = dict(gradients.rnn.named())
    for name, array in model.rnn.named():
        direction = generator.normal(size=array.shape)

        def loss(value: Any, at: Any = array) -> Any:
            rnn = model.rnn.map(lambda each: value if each is at else each)
            return loss_with("rnn")(rnn)

        assert_gradient_along(name, got[name], loss, array, direction)


def test_cross_entropy_of_large_logits() -> None:
    logits = np.array([[1e4, 0.0, -1e4], [0.0, 0.0, 0.0]])
    loss, dlogits = classifier.cross_entropy(logits, np.array([0, 2]))
    assert loss == pytest.approx(np.log(3) / 2)
    np.testing.assert_allclose(dlogits, np.array([[0, 0, 0], [1 / 3, 1 / 3, -2 / 3]]) / 2)


def test_adam_first_steps() -> None:
    """With the same gradient again and again each step is the learning rate, against its sign."""
    parameter = np.array([1.0, -2.0, 3.0])
    adam = Adam([parameter], learning_rate=0.1)
    for steps in (1, 2, 3):
        adam.step([np.array([5.0, -1e-3, 0.0])])
        expected = [1.0 - 0.1 * steps, -2.0 + 0.1 * steps, 3.0]
        np.testing.assert_allclose(parameter, expected, rtol=1e-3)


@pytest.mark.parametrize("part", ["y", "h_n", "dx", "dh0", "dw_ih", "db_hh", "NaN"])
def test_padding_difference_sees_a_leak(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    training, _ = classifier.load()
    model, batch = classifier.init_model(0), training.pick([0, 100, 200])
    assert classifier.padding_difference(model, batch, 29) == 0.0
    honest = rnnop.rnn_vjp

    def leaking(x: Any, *args: Any, **options: Any) -> Any:
        out, vjp = honest(x, *args, **options)

        def leaking_vjp(*cotangents: Any, **more: Any) -> Any:
            grads = vjp(*cotangents, **more)
            if len(x) == 29:
                leak({"dx": grads.x, "dh0": grads.h0})
                leak({"dw_ih": grads.weights.w_ih[1], "db_hh": grads.weights.b_hh[0]})
            return grads

        if len(x) == 29:
            leak({"y": out.y, "h_n": out.h_n, "NaN": out.y})
        return out, leaking_vjp

    def leak(arrays: dict[str, Any]) -> None:
        if part in arrays:
            arrays[part].flat[0] += np.nan if part == "NaN" else 1e-3

    monkeypatch.setattr(rnnop, "rnn_vjp", leaking)
    difference = classifier.padding_difference(model, batch, 29)
    assert difference > 5e-4 or np.isnan(difference)


@pytest.mark.parametrize("package", ["matplotlib", "tqdm"])
def test_missing_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as stop:
        demo()
    assert stop.value.code == (
        f'rnnop: {package} is missing; install it with: pip install "rnnop[demo]"'
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--epochs", "0"], "--epochs: '0' is not an integer from 1 on"),
        (["--epochs", "many"], "--epochs: 'many' is not an integer from 1 on"),
        (["--seed", "-1"], "--seed: '-1' is not an integer from 0 on"),
        (["--output", "plot.jpg"], "--output: 'plot.jpg' does not end in .png"),
        (["--output", "nowhere/plot.png"], "--output: 'nowhere/plot.png' cannot be written to"),
        (["--output", "folder.png"], "--output: 'folder.png' cannot be written to"),
    ],
    ids=lambda value: "-".join(value)[2:] if isinstance(value, list) else "",
)
def test_wrong_options(
    options: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(SystemExit) as stop:
        main(["demo", *options])
    assert stop.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"argument {reason}")


def test_error_of_rnnop_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RNNOP_BACKEND", "abacus")
    assert demo("--output", str(tmp_path / "plot.png")) == 1
    error = capsys.readouterr().err
    assert error.startswith("rnnop: explain: the environment variable RNNOP_BACKEND is 'abacus'")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # so that no sentence is broken
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    listed = capsys.readouterr().out
    for name, command in COMMANDS.items():
        with pytest.raises(SystemExit) as stop:
            main([name, "--help"])
        assert stop.value.code == 0
        shown = capsys.readouterr().out
        summary = str(command.__doc__).splitlines()[0]
        assert name in listed
        assert summary in listed
        assert summary in shown
        assert "--json" in shown


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    assert "COMMAND" in capsys.readouterr().err
