"""The Hugging Face Trainer and Accelerate, whose times are those of their lines."""

from dataclasses import replace
from typing import Any

import pytest

from trainer.contract import FailureKind
from tuner.adapters.log_lines import LogLine


def arriving(lines: list[LogLine], step_s: float) -> list[LogLine]:
    """The lines as they come in while the trainer runs: the bar moves at each step's end."""
    found, now_s = [], 1000.0
    last = ""
    for line in lines:
        part = line.text.partition("| ")[2].partition("/")[0]
        if "%|" in line.text and part != last and "Loading" not in line.text:
            now_s, last = now_s + step_s, part
        found.append(replace(line, arrival_s=now_s))
    return found


@pytest.mark.parametrize(
    ("name", "step_s", "loss"),
    [
        ("hf-trainer/transformers-5.log", 2.1, 9.2),
        ("hf-trainer/transformers-4.46.log", 2.1, 9.2),
        ("accelerate/no-trainer.log", 1.4, None),
    ],
)
def test_the_bar_gives_the_step_time(
    logs: Any, name: str, step_s: float, loss: float | None
) -> None:
    output = logs.read(name, arriving(logs.lines_of(name), step_s)).output()
    assert output.result is not None, output.failures
    assert output.result.step_time_s == pytest.approx(step_s)
    assert output.result.final_loss == loss
    assert [step.is_warmup for step in output.steps] == [True] + [False] * 6


@pytest.mark.parametrize("form", ["'{:.4g}'", "{:.4f}"], ids=["version 5", "version 4"])
def test_the_time_of_the_logs_is_finer_than_the_bar(logs: Any, form: str) -> None:
    lines, step = [], 0
    for line in logs.lines_of("hf-trainer/transformers-5.log"):
        text = line.text
        if "'loss'" in text:
            step += 1
            text = f"{text[:-1]}, 'train_runtime': {form.format(0.5 + 0.123 * step)}}}"
        lines.append(replace(line, text=text, arrival_s=10.0 * step))
    output = logs.read("hf-trainer/transformers-5.log", lines).output()
    assert output.result is not None, output.failures
    assert output.result.step_time_s == pytest.approx(0.123, abs=0.001)
    assert output.result.final_loss == 9.2


def test_a_time_of_four_digits_is_too_coarse_in_the_end(logs: Any) -> None:
    lines, step = [], 0
    for line in logs.lines_of("hf-trainer/transformers-5.log"):
        text = line.text
        if "'loss'" in text:
            step += 1
            text = f"{text[:-1]}, 'train_runtime': '{99 + 0.3 * step:.4g}'}}"
        lines.append(replace(line, text=text))
    name = "hf-trainer/transformers-5.log"
    output = logs.read(name, arriving(lines, 0.3)).output()
    assert output.result is not None
    assert output.result.step_time_s == pytest.approx(0.3, abs=1e-6)


def test_a_script_s_own_lines_of_steps_will_do(logs: Any) -> None:
    lines = logs.lines_of("accelerate/step-lines.log")
    timed = [replace(line, arrival_s=100.0 + 3 * index) for index, line in enumerate(lines)]
    output = logs.read("accelerate/step-lines.log", timed).output()
    assert output.result is not None
    assert output.result.step_time_s == pytest.approx(3.0)


def test_memory_is_what_was_there_and_what_was_added(logs: Any) -> None:
    adapter = logs.read("hf-trainer/transformers-5.log")
    assert adapter.reading.peak_memory_bytes == 2013265920 + 5368709120 + 497774592
    assert adapter.reading.num_parameters == 124_439_808


def test_tokens_that_were_not_run_are_missed(logs: Any) -> None:
    """The header says 32 sequences, the counter of tokens grows by 16."""
    name = "hf-trainer/transformers-5.log"
    halved = [
        replace(line, text=_halved(line.text)) if "num_input_tokens_seen" in line.text else line
        for line in logs.lines_of(name)
    ]
    failure = logs.read(name, arriving(halved, 2.0)).output().failures[0]
    assert failure.failure is FailureKind.IMPLAUSIBLE
    assert "2048 tokens per step" in failure.message
    assert "means 4096" in failure.message


def _halved(text: str) -> str:
    head, mark, rest = text.partition("'num_input_tokens_seen': ")
    digits = rest.rstrip("}")
    return f"{head}{mark}{int(digits) // 2}}}"


def test_a_loss_that_is_no_number_is_a_divergence(logs: Any) -> None:
    for text in ("{'loss': nan, 'epoch': 0.1}", "{'loss': 'nan', 'epoch': '0.1'}"):
        adapter = logs.adapter_of("hf-trainer")
        adapter.feed([LogLine(text)])
        assert adapter.output().failures[0].failure is FailureKind.DIVERGED


def test_bars_of_other_things_are_no_steps(logs: Any) -> None:
    adapter = logs.adapter_of("hf-trainer")
    adapter.feed(
        LogLine(text, arrival_s=1.0)
        for text in (
            "Loading weights: 100%|██████████| 148/148 [00:00<00:00, 3021.12it/s]",
            "Map (num_proc=4):  10%|█         | 1000/10000 [00:01<00:09, 990.12 examples/s]",
            "{'train_runtime': 3.1, 'train_loss': 9.1}",
        )
    )
    assert adapter.steps.last_number == 0
