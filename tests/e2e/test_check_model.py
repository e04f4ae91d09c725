"""`envsmith check` with a model at hand: real folders with a config.json and weights, beside a real recipe and lock."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import Project
from tests.unit.test_rules import QWEN

QUOTA = "[env.app.job]\nkv-cache-gib = 8.0\nmax-tokens = 18048\nmax-sequences = {sequences}\n{more}\n[env.app.launch]"


def make_model(folder: Path, *, stored: int | None = None, **keys: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**QWEN, **keys}))
    if stored is not None:
        index = {"metadata": {"total_size": stored}, "weight_map": {}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def ask(project: Project, sequences: int = 4, more: str = "") -> None:
    project.edit("[env.app.launch]", QUOTA.format(sequences=sequences, more=more))


def test_a_cache_that_fits_is_told_with_what_is_to_spare(built: Project) -> None:
    ask(built, more='model = "../models/small"')
    make_model(built.folder / "models" / "small", stored=1_192_099_840)
    said = built.run("check", "demo")
    assert (said.code, said.kinds) == (0, set())
    size = said.json["data"]["sizing"]["app"]
    assert size["kv_cache"]["needed_bytes"] == 8_279_556_096
    assert (size["kv_cache"]["quota_bytes"], size["weight_bytes"], size["weights_exact"]) == (8 << 30, 1192099840, True)
    assert size["cache"] == {
        "kv_heads": 8, "head_dim": 128, "full_layers": 28, "window_layers": 0, "window": None, "latent": None,
    }  # fmt: skip
    text = built.run("check", "demo", json=False)
    assert text.out.splitlines()[-1] == (
        "sized app by models/small/config.json: key-value cache 7.71 GiB of 8.00 GiB a device, "
        "0.29 GiB to spare, weights 1.11 GiB"
    )


def test_a_cache_that_does_not_fit_is_exit_1_and_what_is_offered_is_fine(built: Project) -> None:
    ask(built, sequences=5)
    model = make_model(built.folder / "small")
    said = built.run("check", "demo", "--model", model)
    assert (said.code, said.kinds) == (1, {"rules/kv-cache-over-quota"})
    (finding,) = said.json["data"]["findings"]
    assert finding["hint"] == "lower `max-sequences` to 4 or `max-tokens` to 14979"
    built.edit("max-sequences = 5", "max-sequences = 4")
    assert built.run("check", "demo", "--model", model / "config.json").code == 0


def test_without_a_model_nothing_is_sized(built: Project) -> None:
    ask(built, sequences=5)
    said = built.run("check", "demo")
    assert (said.code, said.json["data"].get("sizing")) == (0, None)


def test_a_model_of_the_recipe_that_is_elsewhere_is_a_note(built: Project) -> None:
    ask(built, sequences=5, more='model = "../models/none"')
    said = built.run("check", "demo")
    assert (said.code, said.kinds) == (0, {"rules/model-not-at-hand"})
    assert built.run("check", "demo", "--model", make_model(built.folder / "m")).kinds == {"rules/kv-cache-over-quota"}


def test_a_configuration_names_a_folder_or_a_model_of_a_hub(built: Project) -> None:
    ask(built, sequences=5)
    config = built.folder / "jobs" / "sft.yaml"
    config.parent.mkdir()
    config.write_text("model_name_or_path: some/model\n")
    assert built.run("check", "demo", "--config", config).code == 0
    make_model(config.parent / "some" / "model")
    said = built.run("check", "demo", "--config", config)
    assert said.kinds == {"rules/kv-cache-over-quota"}
    (config.parent / "grpo.txt").write_text(f"actor_rollout_ref.model.path={config.parent}/some/model\n")
    said = built.run("check", "demo", "--config", config.parent / "grpo.txt")
    assert said.kinds == {"rules/kv-cache-over-quota"}


def test_the_weights_of_one_file_are_counted_behind_its_head(built: Project) -> None:
    model = make_model(built.folder / "m")
    head = json.dumps({"a": {"dtype": "BF16", "shape": [50], "data_offsets": [0, 100]}}).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(100))
    size = built.run("check", "demo", "--model", model).json["data"]["sizing"]["app"]
    assert (size["weight_bytes"], size["weights_exact"]) == (100, True)
    (model / "model.safetensors").write_bytes(b"cut")
    size = built.run("check", "demo", "--model", model).json["data"]["sizing"]["app"]
    assert size["weights_exact"] is False


def test_a_model_that_is_not_known_is_a_note_and_no_figure(built: Project) -> None:
    ask(built)
    said = built.run("check", "demo", "--model", make_model(built.folder / "m", model_type="unheard-of"))
    assert (said.code, said.kinds) == (0, {"rules/model-not-sized"})
    size = said.json["data"]["sizing"]["app"]
    assert (size["cache"], size["kv_cache"]) == (None, None)
    assert "unheard-of" in size["unsized"]


def test_the_memory_of_a_machine_is_held_against_weights_and_quota(built: Project) -> None:
    ask(built)
    head = '[snapshot]\nschema = 1\norigin = "captured"\n\n[host]\n'
    device = f'[[host.accelerator]]\nname = "X"\ncount = 2\nmemory-bytes = {16 << 30}\n'
    (built.folder / "node.toml").write_text(f"{head}{device}")
    for stored, kind in ((33 << 30, "weights-over-memory"), (9 << 30, "memory-over-device"), (7 << 30, "")):
        model = make_model(built.folder / f"m{stored >> 30}", stored=stored)
        said = built.run("check", "demo", "--host", "node.toml", "--model", model)
        assert {one for one in said.kinds if one.startswith("rules/")} == ({f"rules/{kind}"} if kind else set())


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        (None, "model-config-unreadable", "m/config.json"),
        (b"\xff\xfe\x00", "model-config-unreadable", "m/config.json"),
        (b"not json", "model-config-syntax", "m/config.json:1"),
        (b"[]", "model-config-syntax", "m/config.json"),
        (b"[" * 200_000, "model-config-syntax", "m/config.json"),
        (b'{"model_type": "llama", "num_hidden_layers": NaN}', "model-config-syntax", "m/config.json"),
        (
            b'{"model_type": "llama", "num_hidden_layers": "6"}',
            "model-config-value",
            "m/config.json: num_hidden_layers",
        ),
        (b'{"num_hidden_layers": 6}', "model-config-value", "m/config.json: model_type"),
    ],
)
def test_a_file_that_is_wrong_is_one_problem(project: Project, text: bytes | None, code: str, where: str) -> None:
    (project.folder / "m").mkdir()
    if text is not None:
        (project.folder / "m" / "config.json").write_bytes(text)
    said = project.run("check", "demo", "--model", "m")
    assert (said.code, said.codes) == (2, [code])
    assert said.json["errors"][0]["where"] == where
    assert said.json["errors"][0]["hint"]


def test_a_pipe_is_not_waited_for(project: Project) -> None:
    os.mkfifo(project.folder / "pipe")
    said = project.run("check", "demo", "--model", "pipe")
    assert (said.code, said.codes) == (2, ["model-config-unreadable"])
    huge = project.folder / "huge.json"
    with huge.open("wb") as stream:
        stream.truncate(65 << 20)
    said = project.run("check", "demo", "--model", huge)
    assert (said.code, said.codes) == (2, ["model-config-unreadable"])


def test_a_path_that_is_not_there_and_an_env_that_is_not_said_are_usage(project: Project) -> None:
    said = project.run("check", "demo", "--model", "nowhere")
    assert (said.code, said.codes) == (2, ["model-config-unreadable"])
    assert project.run("check", "demo", "--model", "x" * 5000).codes == ["path-malformed"]
    project.recipe.write_text(project.recipe.read_text() + '\n[env.other]\npython = "3.11"\n')
    said = project.run("check", "demo", "--model", make_model(project.folder / "m"))
    assert (said.code, said.codes) == (2, ["usage"])
    assert "--model" in said.json["errors"][0]["message"]
