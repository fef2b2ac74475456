"""The example of a world model: a short run, its batches, its gradients, and what it refuses."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from differences import assert_gradient_along

pytest.importorskip("gymnasium")
EXAMPLE = Path(__file__).parents[1] / "examples" / "world_model.py"
SPEC = importlib.util.spec_from_file_location("world_model", EXAMPLE)
assert SPEC is not None
assert SPEC.loader is not None
example = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)

PNG = b"\x89PNG\r\n\x1a\n"
LENGTHS = (90, 60, 75, 61)


@pytest.fixture(scope="module")
def stream() -> Any:
    return example.collect(LENGTHS, np.random.default_rng(0))


def small(dtype: Any = np.float64) -> Any:
    def cast(array: Any) -> Any:
        return array.astype(dtype)

    model = example.init_model(5, 0)
    mlps = (example.MLP(*map(cast, mlp)) for mlp in model[1:])
    return example.Model(model.rssm.map(cast), *mlps)


@pytest.mark.slow
def test_short_run_beats_the_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "plot.png"
    example.main(["--updates", "200", "--episodes", "40", "--json", "--output", str(plot)])
    out, err = capsys.readouterr()
    result = json.loads(out)
    error = result["error"]
    assert error["model"] < 0.75 * error["last_value"]
    assert error["model"] < 0.85 * error["mean"]
    assert 0.7 < result["inside_band"] < 0.98  # of 0.9 that should be
    content = plot.read_bytes()
    assert content.startswith(PNG)
    assert len(content) > 20_000  # an empty figure has a few thousand bytes
    lines = [line.partition("  reconstruction ")[0] for line in err.splitlines()]
    assert lines == [f"update {number:3}/200" for number in range(20, 201, 20)]


def test_text_and_seed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "draw", lambda *_: None)  # which takes most of so short a run
    shown = []
    for seed in ("7", "7", "8"):
        example.main(["--updates", "2", "--episodes", "2", "--hidden", "4", "--seed", seed])
        shown.append(capsys.readouterr().out.splitlines())
    titles = [line[:14].rstrip() for line in shown[0]]
    assert titles == ["episodes", "network", "training", "error", "inside band", "plot"]
    assert shown[0][3] == shown[1][3] != shown[2][3]


def test_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    losses = [example.Loss(2.0, 1.0)] * 3
    assert list(example.shown(iter(losses), 3)) == losses
    assert "3/3" in sys.stderr.getvalue()
    assert "update 1/3" not in sys.stderr.getvalue()


# The episodes


def test_a_stream_is_what_the_pendulum_does(stream: Any) -> None:
    """Each action led to its observation, by the equation of motion; the first of all led to none.

    A step is 0.05 s. The velocity changes first, and the angle by the new one.
    """
    assert np.flatnonzero(stream.is_first).tolist() == [0, *np.cumsum(LENGTHS[:-1])]
    assert {array.dtype for array in stream[:2]} == {np.dtype(np.float32)}
    assert not stream.actions[stream.is_first].any()
    assert 1 < np.abs(stream.actions).max() <= 2
    cos, sin, velocity = stream.observations.T.astype(np.float64)
    faster = velocity[:-1] + 0.05 * (15 * sin[:-1] + 3 * stream.actions[1:, 0])
    turned = np.exp(1j * 0.05 * velocity[1:]) * (cos + 1j * sin)[:-1]
    inside = ~stream.is_first[1:]
    np.testing.assert_allclose(velocity[1:][inside], np.clip(faster, -8, 8)[inside], atol=1e-5)
    np.testing.assert_allclose((cos + 1j * sin)[1:][inside], turned[inside], atol=1e-5)


def test_windows(stream: Any) -> None:
    windows = stream.windows([0, 80, 236], 50)
    assert [array.shape for array in windows] == [(50, 3, 3), (50, 3, 1), (50, 3)]
    assert np.argwhere(windows.is_first).tolist() == [[0, 0], [10, 1]]
    np.testing.assert_array_equal(windows.observations[:, 1], stream.observations[80:130])
    np.testing.assert_array_equal(windows.actions[-1, 2], stream.actions[-1])
    later = windows.steps(slice(10, None))
    assert later.is_first.shape == (40, 3)
    assert later.is_first[0, 1]


def test_swinging_up_ends_upright() -> None:
    played = example.collect([200] * 8, np.random.default_rng(1))
    heights = played.observations[:, 0].reshape(8, 200)[:, 150:].mean(axis=1)
    assert heights[::2].min() > 0.8
    assert heights[1::2].max() < 0.5


def test_scale(stream: Any) -> None:
    observations = stream.observations
    scale = example.Scale(observations.mean(axis=0), observations.std(axis=0))
    standardised = scale.standardised(stream)
    np.testing.assert_allclose(standardised.observations.mean(axis=0), np.zeros(3), atol=1e-5)
    np.testing.assert_allclose(standardised.observations.std(axis=0), np.ones(3), atol=1e-5)
    np.testing.assert_allclose(scale.undo(standardised.observations), observations, atol=1e-5)


# The model


def test_gradients(stream: Any) -> None:
    """Of every array along a direction, in windows with a new episode in the middle of one."""
    generator = np.random.default_rng(0)
    windows = stream.windows([85, 20], 9)
    batch = example.Stream(*(array.astype(np.float64) for array in windows[:2]), windows[2])
    assert batch.is_first[5, 0]
    model, noise = small(), generator.standard_normal((9, 2, 6))
    _, gradients = example.loss_and_gradients(model, batch, noise)
    pairs = list(zip(model.arrays(), gradients.arrays(), strict=True))
    assert len(pairs) == 22
    for number, (array, gradient) in enumerate(pairs):
        start = array.copy()

        def loss(value: Any, array: Any = array) -> Any:
            array[...] = value
            return np.array(example.loss_and_gradients(model, batch, noise)[0])

        direction = generator.standard_normal(array.shape)
        assert_gradient_along(f"array {number}", gradient, loss, start, direction)
        array[...] = start


def test_a_window_of_two_episodes_has_the_loss_of_both(stream: Any) -> None:
    model, noise = small(np.float32), np.random.default_rng(0).standard_normal((9, 1, 6))
    window, noise = stream.windows([85], 9), noise.astype(np.float32)
    parts = [
        example.loss_and_gradients(model, window.steps(part), noise[part])[0]
        for part in (slice(5), slice(5, None))
    ]
    whole, _ = example.loss_and_gradients(model, window, noise)
    assert np.isfinite(whole).all()
    np.testing.assert_allclose(whole, np.average(parts, axis=0, weights=(5, 4)), rtol=1e-5)


def test_divergence() -> None:
    """KL of N(1, 2^2) from N(3, 4^2) and of N(0, 1) from itself: log 2 + (4 + 4) / 32 - 1/2."""
    arrays = (np.array(each) for each in ([[3.0, 0.0]], [[4.0, 1.0]], [[1.0, 0.0]], [[2.0, 1.0]]))
    kl, _ = example.gaussian_kl_vjp(*arrays)
    np.testing.assert_allclose(kl, [np.log(2) - 0.25])


def test_arithmetic_is_float32(stream: Any) -> None:
    noise = np.zeros((9, 2, 6), np.float32)
    batch = stream.windows([85, 20], 9)
    _, gradients = example.loss_and_gradients(small(np.float32), batch, noise)
    assert {array.dtype for array in gradients.arrays()} == {np.dtype(np.float32)}


def test_adam_first_steps() -> None:
    """With the same gradient again and again each step is the rate, against its sign."""
    parameter = np.array([1.0, -2.0, 3.0])
    adam = example.Adam([parameter])
    for steps in (1, 2, 3):
        adam.step([np.array([5.0, -1e-3, 0.0])], 0.1)
        expected = [1.0 - 0.1 * steps, -2.0 + 0.1 * steps, 3.0]
        np.testing.assert_allclose(parameter, expected, rtol=1e-3)


# The predictions


def test_a_forecast_sees_only_the_past(stream: Any) -> None:
    model, windows = small(np.float32), stream.windows([0, 10], 70)
    samples = example.forecast(model, windows, 0).samples
    assert samples.shape == (50, 2, 50, 3)
    later, earlier, turned = (
        windows._replace(**{name: windows._asdict()[name].copy()})
        for name in ("observations", "observations", "actions")
    )
    later.observations[20:] = np.nan
    np.testing.assert_array_equal(example.forecast(model, later, 0).samples, samples)
    earlier.observations[19] += 1
    changed = example.forecast(model, earlier, 0).samples != samples
    assert changed[0].any(axis=-1).all()
    turned.actions[30:] += 1  # step 10 of those ahead, and after
    changed = example.forecast(model, turned, 0).samples != samples
    assert not changed[:10].any()
    assert changed[10:].any(axis=-1).all()


def test_errors_and_band() -> None:
    """Samples -10, -9.. 10 around a truth that they hit at first and miss at last."""
    spread = np.arange(-10.0, 11.0)[:, None]
    truth = np.zeros((2, 1, 3))
    truth[1] = 12.0
    samples = np.broadcast_to(spread, (2, 1, 21, 3))
    result = example.Forecast(np.full((1, 1, 3), 4.0), truth, samples)
    assert [each.tolist() for each in result.band()] == [[[[-9] * 3]] * 2, [[[9] * 3]] * 2]
    assert result.inside().tolist() == [1, 0]
    errors = {name: error.tolist() for name, error in result.errors().items()}
    assert errors == {"model": [0, 12], "last_value": [4, 8], "mean": [0, 12]}


# The command


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--updates", "0"], "--updates is 0; expected at least 1"),
        (["--episodes", "-1"], "--episodes is -1; expected at least 1"),
        (["--hidden", "0"], "--hidden is 0; expected at least 1"),
        (["--seed", "-1"], "--seed is -1; expected at least 0"),
        (["--output", "plot.jpg"], "--output is plot.jpg; expected a .png in a folder that is"),
        (["--output", "nowhere/plot.png"], "--output is nowhere/plot.png; expected a .png"),
    ],
    ids=lambda value: "-".join(value)[2:] if isinstance(value, list) else "",
)
def test_wrong_options(options: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        example.main(options)
    assert stop.value.code == 2
    assert f"error: {reason}" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        example.main(["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert str(example.__doc__).splitlines()[0] in shown
    assert "--json" in shown
