"""What a run says of itself at its end."""

import json

from da3po.eval.during import compare_ends, write_result


def summary(value, low, high, n):
    estimate = {"value": value, "low": low, "high": high}
    return {"num_problems": 10, "num_samples": n, "avg": estimate, "pass_at": {str(n): estimate}}


def write(folder, step, *args):
    (folder / f"step_{step:06d}.json").write_text(json.dumps(summary(*args)))


def test_before_and_after_stand_side_by_side(tmp_path):
    write(tmp_path, 0, 0.2, 0.15, 0.25, 8)
    write(tmp_path, 10, 0.3, 0.28, 0.32, 8)
    write(tmp_path, 30, 0.5, 0.45, 0.55, 8)
    text = compare_ends(tmp_path)
    assert "before (step 0): avg@8 0.200 [0.150, 0.250]" in text
    assert "after (step 30): avg@8 0.500 [0.450, 0.550]" in text
    assert "gain +0.300; the 95 % intervals do not overlap" in text


def test_overlapping_intervals_are_called_so(tmp_path):
    write(tmp_path, 0, 0.2, 0.15, 0.25, 8)
    write(tmp_path, 1, 0.26, 0.22, 0.3, 8)
    assert compare_ends(tmp_path).endswith("overlap")


def test_evaluations_of_different_size_are_each_named_by_their_own(tmp_path):
    write(tmp_path, 0, 0.2, 0.15, 0.25, 2)
    write(tmp_path, 1, 0.5, 0.45, 0.55, 1)
    assert "avg@2" in compare_ends(tmp_path) and "avg@1" in compare_ends(tmp_path)


def test_one_evaluation_is_no_comparison(tmp_path):
    write(tmp_path, 1, 0.5, 0.45, 0.55, 1)
    assert "not evaluated both before and after" in compare_ends(tmp_path)


class Result:
    samples = ()

    def summary(self):
        return {"num_problems": 0}


def test_a_name_with_dots_is_kept_whole(tmp_path):
    write_result(tmp_path / "Qwen2.5-0.5B-aime24", Result(), [])
    write_result(tmp_path / "Qwen2.5-0.5B-math500", Result(), [])
    names = sorted(path.name for path in tmp_path.glob("*.json"))
    assert names == ["Qwen2.5-0.5B-aime24.json", "Qwen2.5-0.5B-math500.json"]
