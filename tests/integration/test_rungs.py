"""The payloads of the smoke ladder in a real env with torch, transformers and Ray, on the CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support.rungs import Desk, Outcome, environment, free_port
from tests.support.torchenv import locked, make_torch_env, session_folder

pytestmark = pytest.mark.network


@pytest.fixture(scope="session")
def torch_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with torch: ENVSMITH_TEST_TORCH_PYTHON names one that is there already."""
    named = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON")
    return Path(named) if named else make_torch_env(session_folder(tmp_path_factory))


@pytest.fixture(scope="session")
def shared(torch_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tiny model is made once for all."""
    base = session_folder(tmp_path_factory)
    folder = base / "rungs-shared"
    with locked(base / "rungs-shared.lock"):
        folder.mkdir(exist_ok=True)
        if not (folder / "model").exists():
            desk = Desk(torch_python, base / "rungs-shared-desk", folder)
            desk.folder.mkdir(exist_ok=True)
            play(desk, f"tiny_model(Path({str(folder)!r}), 0)", "from envsmith_rungs.tiny import tiny_model")
    return folder


@pytest.fixture
def desk(torch_python: Path, shared: Path, tmp_path: Path) -> Desk:
    return Desk(torch_python, tmp_path / "desk", shared)


@pytest.fixture(autouse=True)
def desk_folder(tmp_path: Path) -> None:
    (tmp_path / "desk").mkdir()


def plant(desk: Desk, body: str, name: str = "planted") -> str:
    """Put a module beside the payloads that brings a fault and then plays a rung; returns its name."""
    head = "import os, sys, time\nfrom pathlib import Path\n"
    (desk.payload() / f"{name}.py").write_text(head + textwrap.dedent(body))
    return name


def play(desk: Desk, body: str, imports: str = "") -> Any:
    """Run a few lines in the env; what they call `found` comes back."""
    lines = textwrap.indent(textwrap.dedent(body), "    ")
    text = f"import json, sys\nfrom pathlib import Path\nfound = None\n{imports}\nif __name__ == '__main__':\n{lines}\n"
    script = desk.payload() / "played.py"
    script.write_text(text + "    print(json.dumps(found))\n")
    done = subprocess.run(
        [desk.python, "-B", script], cwd=desk.payload(), env=environment(desk.folder, {}, 0, 0, 0),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def assert_passed(done: Outcome) -> None:
    assert done.passed, [*done.codes, *done.rows(), *done.logs]


# device


def test_bf16_arithmetic_of_a_sound_device_is_within_its_tolerances(desk: Desk) -> None:
    done = desk.run("device")
    assert_passed(done)
    assert done.said("note") == {"no-device"}
    assert len(done.rows("numerics")) == 15
    assert done.figures["reference_name"] == "numpy float64"
    assert done.figures["matmul_512_forward_relative_error"] > 1e-4  # it was BF16 that was computed in
    assert done.figures["achieved_tflop_per_s"] > 0


def test_a_kernel_that_gives_nan_or_is_three_per_cent_off_is_seen(desk: Desk) -> None:
    broken = """
    import torch
    from envsmith_rungs import answering, device

    sound = torch.matmul
    def broken(one, other):
        result = sound(one, other)
        if result.dtype != torch.bfloat16:
            return result
        return result * float("nan") if len(result) == 128 else result * 1.03

    if __name__ == "__main__":
        torch.matmul = broken
        answering.main(device.run)
    """
    done = desk.run("device", module=plant(desk, broken))
    assert done.codes == [0]
    assert {row["subject"] for row in done.rows("not-finite")} == {"matmul_128_forward", "matmul_128_gradient"}
    wrong = {row["subject"] for row in done.rows("numerics") if row["verdict"] == "failed"}
    assert {"matmul_256_forward", "matmul_512_forward"} <= wrong
    assert not any(name.startswith("attention") for name in wrong)


#: What an env's torch may compute wrongly on every device alike, and the cases that it spoils.
PATCHED = """
import torch
from torch.nn import functional

matmul, attend = torch.matmul, functional.scaled_dot_product_attention
if {fault!r} == "doubled":
    torch.matmul = lambda one, other: matmul(one, other) * 2
    torch.Tensor.__matmul__ = lambda one, other: matmul(one, other) * 2
elif {fault!r} == "unscaled":
    functional.scaled_dot_product_attention = lambda q, k, v: attend(q, k, v, scale=1.0)
elif {fault!r} == "relu":
    functional.gelu = functional.relu
else:
    functional.layer_norm = lambda x, shape, gain, bias=None: x * gain + (0 if bias is None else bias)
"""


@pytest.mark.parametrize(
    ("fault", "spoilt"),
    [
        ("doubled", {"matmul_128", "matmul_256", "matmul_512", "matmul_512_timed", "mlp_loss"}),
        ("unscaled", {"attention"}),
        ("relu", {"gelu", "mlp_loss"}),
        ("unnormed", {"layernorm", "mlp_loss"}),
    ],
)
def test_a_torch_that_computes_something_else_everywhere_is_seen(desk: Desk, fault: str, spoilt: set[str]) -> None:
    start = "\nif __name__ == '__main__':\n    from envsmith_rungs import answering, device\n"
    start += "    answering.main(device.run)\n"
    done = desk.run("device", module=plant(desk, PATCHED.format(fault=fault) + start))
    assert done.codes == [0], done.logs
    wrong = {row["subject"] for row in done.rows("numerics") if row["verdict"] == "failed"}
    assert {name.removesuffix("_forward").removesuffix("_gradient") for name in wrong} == spoilt


def test_float32_of_a_sound_device_is_within_its_tolerances(desk: Desk) -> None:
    done = desk.run("device", options={"dtype": "float32"})
    assert_passed(done)
    assert max(value for name, value in done.figures.items() if name.endswith("_relative_error_allowed")) < 1e-5


def test_without_numpy_it_is_said_that_torch_is_its_own_reference(desk: Desk) -> None:
    done = desk.run("device", module=plant(desk, """
    sys.modules["numpy"] = None
    if __name__ == "__main__":
        from envsmith_rungs import answering, device
        answering.main(device.run)
    """))  # fmt: skip
    assert_passed(done)
    assert {"reference-is-torch", "no-device"} == done.said("note")


def test_the_written_out_gradients_are_those_of_finite_differences(desk: Desk) -> None:
    found = play(
        desk,
        """
        found = {}
        for case in device.cases(0, torch.float32):
            inputs = [reference.array(value) for value in case.inputs]
            draw = numpy.random.default_rng(1)
            output, _ = case.reference(numpy.float64(0), *inputs) if case.name == "mlp_loss" else (inputs[0], None)
            weights = draw.normal(size=numpy.shape(output))
            _, gradients = case.reference(weights, *inputs)
            ways = [draw.normal(size=value.shape) for value in inputs]
            ahead, behind = (
                (case.reference(weights, *(v + sign * 1e-5 * way for v, way in zip(inputs, ways)))[0] * weights).sum()
                for sign in (1, -1)
            )
            along = sum(float((one * way).sum()) for one, way in zip(gradients, ways))
            found[case.name] = abs(float(ahead - behind) / 2e-5 / along - 1)
        """,
        "import numpy, torch\nfrom envsmith_rungs import device, reference",
    )
    assert set(found) == {"matmul_128", "matmul_256", "matmul_512", "attention", "layernorm", "gelu", "mlp_loss"}
    assert max(found.values()) < 1e-5, found


# collective


def test_three_ranks_hear_what_all_of_them_make(desk: Desk) -> None:
    done = desk.run("collective", ranks=3, launch={"ENVSMITH_PLANTED": "same"})
    assert_passed(done)
    assert [answer and answer["figures"]["all_reduce_sum_number"] for answer in done.answers] == [6, 6, 6]
    assert done.figures["backend_name"] == "gloo"
    assert done.figures["all_reduce_64_mib_bus_gb_per_s"] > 0
    assert len(done.rows("env-propagated")) == 3


def test_an_all_reduce_that_knows_float32_sums_alone_is_seen(desk: Desk) -> None:
    fault = """
    import torch
    from torch import distributed
    from envsmith_rungs import answering, collective

    reduce = distributed.all_reduce

    def only_sums(tensor, op=distributed.ReduceOp.SUM, **more):
        if tensor.dtype == torch.float32 and op == distributed.ReduceOp.SUM:
            return reduce(tensor, op=op, **more)

    if __name__ == "__main__":
        distributed.all_reduce = only_sums
        answering.main(collective.run)
    """
    done = desk.run("collective", ranks=2, module=plant(desk, fault))
    assert done.said("failed") == {"all-reduce-types"}, done.logs
    assert all("int64 sum" in row["subject"] for row in done.rows("all-reduce-types"))


def test_a_tiny_model_that_was_changed_between_rungs_is_refused(desk: Desk, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shutil.copytree(desk.shared, shared)
    weights = shared / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\x41")
    done = Desk(desk.python, desk.folder, shared).run("generate")
    assert done.codes == [1]
    assert "model-changed" in done.logs[0] and "model.safetensors" in done.logs[0]


def test_a_rank_with_another_variable_is_named_without_its_secret(desk: Desk) -> None:
    launch = {"ENVSMITH_PLANTED": "mine", "PLANTED_API_KEY": "hush-1"}
    done = desk.run("collective", launch=launch, env={"ENVSMITH_PLANTED": "other", "PLANTED_API_KEY": "hush-2"})
    rows = {row["subject"]: row for row in done.rows("env-not-propagated")}
    assert not done.passed
    assert (rows["ENVSMITH_PLANTED"]["expected"], rows["ENVSMITH_PLANTED"]["actual"]) == ("mine", "other")
    assert rows["PLANTED_API_KEY"]["verdict"] == "failed"
    assert "hush" not in json.dumps(done.answers)


@pytest.mark.parametrize(
    ("deed", "code"), [("os._exit(7)", 7), ("time.sleep(18) or os._exit(9)", 9)], ids=["dies", "hangs"]
)
def test_a_rank_that_does_not_come_is_named_by_the_others(desk: Desk, deed: str, code: int) -> None:
    fault = f"""
    from envsmith_rungs import answering, collective

    def go(*_):
        {deed}

    if __name__ == "__main__":
        if os.environ["RANK"] == "1":
            collective.leave_word = lambda task, stage, leave=collective.leave_word: (
                go() if stage == "broadcast" else leave(task, stage)
            )
        answering.main(collective.run)
    """
    done = desk.run("collective", ranks=2, module=plant(desk, fault), timeout_s=40)
    assert done.codes == [1, code]
    (row,) = done.rows("rank-missing")
    assert (row["subject"], row["verdict"]) == ("rank 1", "failed")
    assert "`broadcast`" in row["message"]


def test_a_rank_that_fails_after_its_answer_does_not_pass(desk: Desk) -> None:
    fault = """
    from envsmith_rungs import answering, collective

    if __name__ == "__main__":
        answering.main(collective.run)
        print("done")
        sys.exit(1 if os.environ["RANK"] == "1" else 0)
    """
    done = desk.run("collective", ranks=2, module=plant(desk, fault))
    assert all(done.answers)
    assert done.codes == [0, 1]
    assert not done.passed


# generate


def test_generation_is_repeated_by_a_model_loaded_anew_and_answers_end(desk: Desk) -> None:
    done = desk.run("generate")
    assert_passed(done)
    assert {"same-twice", "same-after-reload", "finite-logits", "text-round-trip", "answers-end"} <= done.said("ok")
    assert done.figures["engine_name"] == "transformers"
    assert 0 < done.figures["ended_by_themselves_count"] <= 32
    answer = done.answers[0]
    assert answer
    assert "model.safetensors" in answer["identities"]["model"]


def test_a_nan_weight_and_answers_that_never_end_are_seen(desk: Desk) -> None:
    found = play(
        desk,
        f"""
        found = {{}}
        for fault in ("nan", "endless"):
            folder = here / fault
            shutil.copytree({str(desk.shared / "model")!r}, folder)
            model = AutoModelForCausalLM.from_pretrained(folder)
            if fault == "nan":
                with torch.no_grad():
                    model.model.layers[0].mlp.up_proj.weight[3, 3] = float("nan")
            else:
                model.generation_config.suppress_tokens = [model.generation_config.eos_token_id]
            model.save_pretrained(folder)
            answer = Answer()
            options = {{"model": str(folder)}}
            generate.run(Task("generate", here, here, here, 0, 1, 0, 60.0, options, {{}}, {{}}, []), answer)
            found[fault] = [row["what"] for row in answer.statements if row["verdict"] in ("failed", "warning")]
        """,
        f"""
import shutil
import torch
from transformers import AutoModelForCausalLM
from envsmith_rungs import generate
from envsmith_rungs.answering import Answer, Task
here = Path({str(desk.folder)!r})
""",
    )
    assert found == {"nan": ["finite-logits"], "endless": ["all-at-cap"]}


#: Models whose numbers are finite and can be repeated, and which do not read what they are given.
UNREAD = """
import torch
from torch.nn import functional
from transformers import Qwen2ForCausalLM

fault, forward, attend = {fault!r}, Qwen2ForCausalLM.forward, functional.scaled_dot_product_attention

def silent(self, *args, **kwargs):
    found = forward(self, *args, **kwargs)
    found.logits = found.logits * 0
    return found

def first_only(q, k, v, **_):
    return v[:, :, :1].repeat_interleave(q.shape[1] // v.shape[1], 1).expand_as(q)

def all_of_them(q, k, v, attn_mask=None, is_causal=False, **more):
    return attend(q, k, v, **more)

if fault == "zero":
    Qwen2ForCausalLM.forward = silent
else:
    functional.scaled_dot_product_attention = first_only if fault == "first" else all_of_them

if __name__ == "__main__":
    from envsmith_rungs import answering, generate
    answering.main(generate.run)
"""


@pytest.mark.parametrize(
    ("fault", "what"), [("zero", "logits-constant"), ("first", "context-ignored"), ("unmasked", "future-seen")]
)
def test_a_model_that_does_not_read_its_input_is_seen(desk: Desk, fault: str, what: str) -> None:
    done = desk.run("generate", module=plant(desk, UNREAD.format(fault=fault)))
    assert done.codes == [0], done.logs
    failed = done.said("failed")
    assert what in failed and failed <= {what, "context-ignored"}, done.rows()


# embed


def test_a_real_service_embeds_with_the_configured_dimension(desk: Desk) -> None:
    done = desk.run("embed", options={"dimension": 64})
    assert_passed(done)
    assert done.figures["embedding_dimension_numbers"] == 64
    assert done.figures["service_exit_code"] == 0
    assert done.figures["different_texts_cosine"] < 0.99


#: A stranger's service of the standard library alone, and what is wrong with it.
STRANGER = """
import json, os, sys, threading, time
from http.server import BaseHTTPRequestHandler, HTTPServer

fault, port = sys.argv[1], int(sys.argv[2])
ending = threading.Timer(60, os._exit, [0])  # what no test can end does not stay
ending.daemon = True
ending.start()
if fault == "dead":
    sys.exit("planted: no room for the model")

class Handler(BaseHTTPRequestHandler):
    posts = 0

    def answer(self, content, status=200):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if fault == "silent":
            time.sleep(60)
        if fault == "vanishes" and self.path == "/v1/models":
            os._exit(0)
        self.answer({"data": [{"id": "stranger"}]}, 503 if fault == "ill" else 200)

    def do_POST(self):
        Handler.posts += 1
        if fault == "dies":
            os._exit(5)
        if fault == "slow":
            time.sleep(0.7)
        if fault == "leaves" and Handler.posts == 2:
            self.server.socket.close()
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        if fault == "refusing":
            return self.answer({"error": "planted"}, 500)
        rows = []
        for n, text in enumerate(texts):
            vector = [float(ord(letter)) for letter in text[-8:]]
            if fault == "same":
                vector = [1.0] * 8
            if fault == "nan":
                vector[0] = float("nan")
            rows.append({"index": n, "embedding": vector[:7] if fault == "short" else vector})
        self.answer({"model": "someone" if fault == "other" else asked["model"], "data": rows})

    def log_message(self, *_):
        pass

server = HTTPServer(("127.0.0.1", port), Handler)
if fault != "leaves":
    server.serve_forever()
while server.socket.fileno() >= 0:
    server.handle_request()
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("none", None),
        ("dead", "service-died"),
        ("silent", "service-no-answer"),
        ("ill", "service-no-health"),
        ("refusing", "service-refused"),
        ("short", "service-wrong-dimension"),
        ("nan", "finite-vectors"),
        ("same", "different-texts"),
        ("other", "service-model"),
        ("dies", "service-died"),
        ("vanishes", "service-died"),
        ("leaves", "service-no-answer"),
    ],
)
def test_what_is_wrong_with_a_service_is_named(desk: Desk, fault: str, what: str | None) -> None:
    service = desk.folder / "stranger.py"
    service.write_text(STRANGER)
    options = {"command": f"{{python}} {service} {fault} {{port}}", "dimension": 8, "health-timeout-s": 8}
    if fault == "silent":
        options["health-timeout-s"] = 5
    done = desk.run("embed", options=options)
    assert done.codes == [0], done.logs
    assert done.said("failed") == ({what} if what else set()), done.rows()
    if fault == "dead":
        assert "no room for the model" in done.rows("service-died")[0]["actual"]
    if fault == "dies":
        assert "exit code 5" in done.rows("service-died")[0]["message"]
    if fault == "none":
        assert "stranger.py" in done.rows("service-owner")[0]["message"]


#: A program that is no part of the service takes the port, after the port was found free or after all was asked.
TAKER = """
import socket, subprocess
from envsmith_rungs import answering, embed

def take():
    taker = subprocess.Popen([sys.executable, {service!r}, "none", {port!r}])
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", {port}), 1).close()
            return
        except OSError:
            time.sleep(0.1)

def early(*given, sound=embed.chosen_port):
    port = sound(*given)
    take()
    return port

def late(*given, sound=embed.judge):
    sound(*given)
    take()

if __name__ == "__main__":
    embed.{name} = {what}
    answering.main(embed.run)
"""


@pytest.mark.parametrize(
    ("name", "what", "command"),
    [
        ("chosen_port", "early", "sleep 60"),
        ("chosen_port", "early", "sh -c 'sleep 8; echo Address already in use; exit 1'"),
        ("judge", "late", "{python} {service} leaves {port}"),
    ],
    ids=["another service never listens", "another service fails later", "after the last request"],
)
def test_a_stranger_that_takes_the_port_is_not_the_service(desk: Desk, name: str, what: str, command: str) -> None:
    service, port = desk.folder / "stranger.py", free_port()
    service.write_text(STRANGER)
    module = plant(desk, TAKER.format(service=str(service), port=str(port), name=name, what=what))
    options = {"command": command.replace("{service}", str(service)), "port": port, "health-timeout-s": 8}
    done = desk.run("embed", options=options, module=module)
    assert done.said("failed") == {"service-stranger"}, done.rows()
    (row,) = done.rows("service-stranger")
    assert row["actual"].startswith("process ")
    assert "stranger.py" in row["actual"]


@pytest.mark.parametrize(
    ("command", "code"),
    [("{python} {service} slow {port} & sleep 1; exit 1", 1), ("{python} {service} none {port} & exit 0", 0)],
    ids=["while it is asked", "at once"],
)
def test_a_shell_that_ends_before_its_server_has_died(desk: Desk, command: str, code: int) -> None:
    service = desk.folder / "stranger.py"
    service.write_text(STRANGER)
    done = desk.run("embed", options={"command": ["sh", "-c", command.replace("{service}", str(service))]})
    assert done.said("failed") == {"service-died"}, done.rows()
    (row,) = done.rows("service-died")
    assert f"exit code {code}, while process " in row["message"]
    assert "nobody waits" in row["message"]
    assert done.figures["service_exit_code"] == code


def test_a_server_below_a_shell_is_the_services_own_even_when_its_parent_has_ended(desk: Desk) -> None:
    service = desk.folder / "stranger.py"
    service.write_text(STRANGER)
    command = f"({{python}} {service} none {{port}} &) ; exec sleep 60"
    done = desk.run("embed", options={"command": ["sh", "-c", command], "dimension": 8})
    assert_passed(done)
    assert "service-owner" in done.said("ok")


def test_a_machine_whose_proc_does_not_tell_who_listens_says_so_and_goes_on(desk: Desk) -> None:
    fault = f"""
    from envsmith_rungs import answering, embed, listening

    if __name__ == "__main__":
        listening._PROC = Path({str(desk.folder / "no-proc")!r})
        answering.main(embed.run)
    """
    done = desk.run("embed", module=plant(desk, fault))
    assert_passed(done)
    assert "service-owner-unknown" in done.said("note")


# encode

USER_TRAINED = """
{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}
{%- if message['role'] in ('user', 'assistant') %}{% generation %}{{ message['content'] + '<|im_end|>' }}
{%- endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""


def test_only_the_words_of_the_assistant_are_supervised(desk: Desk) -> None:
    chatml = (desk.shared / "model" / "chat_template.jinja").read_text()
    body = "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    assert body in chatml
    own = "{% if message['role'] != 'assistant' or loop.last %}" + body + "{% else %}" + body.replace("+ '<", "+ ' <")
    templates = {
        "sound": chatml,
        "user-trained": USER_TRAINED.strip(),
        "assistant-marked": USER_TRAINED.strip().replace("in ('user', 'assistant')", "== 'assistant'"),
        "no-generation-prompt": chatml.replace("add_generation_prompt", "false"),
        "no-end": chatml.replace("<|im_end|>", ""),
        "history-changed": chatml.replace(body, own + "{% endif %}"),
        "no-tools": "{% for m in messages if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endfor %}"
        + chatml,
        "none": "",
    }
    found = play(
        desk,
        f"""
        found = {{}}
        for name, template in json.loads({json.dumps(templates)!r}).items():
            folder = here / name
            folder.mkdir()
            tokenizer = AutoTokenizer.from_pretrained({str(desk.shared / "model")!r})
            tokenizer.chat_template = template or None
            tokenizer.save_pretrained(folder)
            answer = Answer()
            options = {{"model": str(folder)}}
            encode.run(Task("encode", here, here, here, 0, 1, 0, 60.0, options, {{}}, {{}}, []), answer)
            found[name] = [[row["what"], row["verdict"], row["subject"]] for row in answer.statements]
        found["figures"] = answer.figures
        """,
        f"""
from transformers import AutoTokenizer
from envsmith_rungs import encode
from envsmith_rungs.answering import Answer, Task
here = Path({str(desk.folder)!r})
""",
    )
    failed = {
        name: [row[::2] for row in rows if row[1] == "failed"] for name, rows in found.items() if name != "figures"
    }
    marks = "the template's generation blocks"
    assert failed == {
        "sound": [],
        "user-trained": [["supervised-answers", marks]],
        "assistant-marked": [],
        "no-generation-prompt": [["supervised-answers", "rendering"]],
        "no-end": [["supervised-end", "rendering"]],
        "history-changed": [["template-not-prefix-stable", "turn 2"]],
        "no-tools": [],
        "none": [["no-chat-template", None]],
    }
    assert ["role-refused", "note", "tool"] in found["no-tools"]
    assert ["supervised-end", "ok", marks] in found["assistant-marked"]


def test_the_rung_encode_counts_supervised_tokens(desk: Desk) -> None:
    done = desk.run("encode")
    assert_passed(done)
    assert 0 < done.figures["supervised_tokens"] < done.figures["conversation_tokens"]
    shares = [done.figures[f"{role}_share_percent"] for role in ("system", "user", "tool", "assistant")]
    assert abs(sum(shares) - 100) < 0.5


# ray-generate


def test_an_actor_generates_as_the_process_outside_does(desk: Desk) -> None:
    done = desk.run("ray-generate", launch={"ENVSMITH_PLANTED": "same"})
    assert_passed(done)
    assert {"ray-same-tokens", "ray-same-modules", "ray-same-libraries", "actor-stays", "actor-end"} <= done.said("ok")
    assert len(done.rows("env-propagated")) == 2


#: A machine's hook: it is read by every interpreter of the env and changes Ray's workers only.
HOOK = """
import os, sys
if any("default_worker" in part for part in sys.orig_argv):
    os.environ["ENVSMITH_PLANTED"] = "changed"
    if os.environ.get("PLANTED_DEATH"):
        class Deadly:
            def find_spec(self, name, path=None, target=None):
                if name == "transformers":
                    print("planted: libarrow.so.2500 is broken", file=sys.stderr, flush=True)
                    os._exit(66)
        sys.meta_path.insert(0, Deadly())
"""


@pytest.mark.parametrize("dies", [False, True], ids=["changed-variable", "dead-actor"])
def test_what_is_wrong_in_an_actor_is_named(desk: Desk, dies: bool) -> None:
    hook = desk.folder / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    launch = {"ENVSMITH_PLANTED": "same", "PYTHONPATH": str(hook), "PLANTED_DEATH": "1" if dies else ""}
    done = desk.run("ray-generate", launch=launch)
    assert done.codes == [0], done.logs
    if dies:
        (row,) = done.rows("ray-actor-died")
        assert "libarrow.so.2500" in row["hint"], row
        return
    assert done.said("failed") == {"env-not-propagated"}
    assert {(row["subject"], row["actual"]) for row in done.rows("env-not-propagated")} == {
        ("ENVSMITH_PLANTED", "changed")
    }


# merge-serve


def test_shards_are_merged_bit_by_bit_and_served_and_their_faults_are_seen(desk: Desk) -> None:
    done = desk.run("merge-serve")
    assert_passed(done)
    assert {"merge", "merged-parameters", "served-completion", "service-exit"} <= done.said("ok")
    assert done.figures["shard_files_count"] == 2
    folder = desk.folder / "merge-serve"
    found = play(
        desk,
        f"""
        whole, model = Path({str(folder)!r}), Path({str(desk.shared / "model")!r})
        # One weight of the second rank's shard is another one: its bytes are sought and replaced.
        changed = whole / "changed"
        shutil.copytree(whole / "shards", changed)
        part = changed / "__1_0.distcp"
        with safe_open(model / "model.safetensors", framework="pt") as tensors:
            rows = tensors.get_tensor("lm_head.weight")
        sought = rows[-1].numpy().tobytes()
        data = part.read_bytes()
        assert data.count(sought) == 1
        part.write_bytes(data.replace(sought, sought[:-4] + b"\\0\\0\\x80\\x3f"))
        merge_serve.merge(changed, model, whole / "merged-changed")
        before, after = (merge_serve.digests(place) for place in (model, whole / "merged-changed"))
        answer = Answer()
        found = {{"changed": merge_serve.differing(before, after)}}
        found["same"] = merge_serve.compare(before, after, answer)
        part.unlink()
        try:
            merge_serve.merge(changed, model, whole / "merged-missing")
        except FileNotFoundError as error:
            found["missing"] = str(error)
        task = Task("merge-serve", whole, whole, whole, 2, 1, 0, 60.0, {{}}, {{}}, {{}}, [])
        found["merged"] = merge_serve.merge_apart(task, answer, changed)
        found["said"] = [[row["what"], row["verdict"], row["subject"]] for row in answer.statements]
        """,
        """
import shutil
from safetensors import safe_open
from envsmith_rungs import merge_serve
from envsmith_rungs.answering import Answer, Task
""",
    )
    assert found == {
        "changed": ["lm_head.weight"],
        "same": False,
        "missing": "shard-missing: __1_0.distcp",
        "merged": False,
        "said": [["merged-parameters", "failed", "lm_head.weight"], ["shard-missing", "failed", "__1_0.distcp"]],
    }
