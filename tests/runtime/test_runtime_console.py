from __future__ import annotations

import io

import pytest

from da3po.runtime.console import PlainConsole, RichConsole, build_console, step_line

VALUES = {
    "rollout/accuracy": 0.3412,
    "reward/mean": -0.318,
    "rollout/num_prompts_kept": 64.0,
    "rollout/num_prompts_generated": 96.0,
    "loss/policy": 0.01234,
    "actor/grad_norm": 0.4149,
    "actor/lr": 1e-4,
    "actor/entropy": 0.8812,
    "mismatch/mean_abs_logprob": 3.13e-6,
    "time/step": 5.43,
    "time/generate": 3.14,
    "time/learn": 1.93,
    "time/sync": 0.12,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_step_line() -> None:
    assert step_line(3, 30, VALUES) == (
        "step 3/30  acc 0.341  reward -0.32  kept 64/96  loss +0.0123  grad 0.41  lr 1.0e-04  entropy 0.88  "
        "mismatch 3.1e-06  5.4 s (gen 3.1 learn 1.9 sync 0.1)"
    )


def test_step_line_without_metrics() -> None:
    assert step_line(1, 2, {}) == (
        "step 1/2  acc -  reward -  kept -/-  loss -  grad -  lr -  entropy -  mismatch -  - s (gen - learn - sync -)"
    )


def test_step_line_with_a_loss_that_is_no_number() -> None:
    assert "loss +nan" in step_line(1, 2, {"loss/policy": float("nan")})


def test_plain_console_writes_lines_without_control_codes() -> None:
    stream = io.StringIO()
    console = build_console("auto", first_step=1, last_step=30, stream=stream)
    console.event("evaluating")
    console.step(3, VALUES)
    console.close()
    assert isinstance(console, PlainConsole)
    assert stream.getvalue() == f"evaluating\n{step_line(3, 30, VALUES)}\n"


def test_rich_console_on_a_terminal_shows_lines_and_progress() -> None:
    stream = Terminal()
    console = build_console("auto", first_step=1, last_step=30, stream=stream)
    console.step(3, VALUES)
    console.event("[not markup] [/oops]")
    console.close()
    shown = stream.getvalue()
    assert isinstance(console, RichConsole)
    assert "acc 0.341" in shown
    assert "[not markup] [/oops]" in shown
    assert "3/30" in shown


@pytest.mark.parametrize(
    ("mode", "stream", "kind"), [("plain", Terminal(), PlainConsole), ("rich", io.StringIO(), RichConsole)]
)
def test_mode_by_name(mode: str, stream: io.StringIO, kind: type) -> None:
    console = build_console(mode, first_step=1, last_step=2, stream=stream)  # type: ignore[arg-type]
    console.close()
    assert isinstance(console, kind)
