"""Plug-in modules import without torch, and run with it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import vlrl_data
import vlrl_rewards

import vlrl

HEAVY = (  # slow, or no part of the base installation
    *("torch", "transformers", "accelerate", "peft", "vllm", "deepspeed", "sklearn", "datasets", "scipy"),
    *("av", "decord", "httpx", "networkx", "pyarrow", "safetensors", "skimage", "tokenizers", "torchvision"),
)
FOLDERS = [Path(package.__file__).parent for package in (vlrl, vlrl_data, vlrl_rewards)]


def plugin_modules() -> list[str]:
    """The modules that register a plug-in, by the text of their files."""
    return [
        ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")
        for folder in FOLDERS
        for path in sorted(folder.rglob("*.py"))
        if re.search(r"^@register\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]


def in_fresh_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_plugin_modules_import_without_heavy_libraries():
    modules = plugin_modules()
    assert len(modules) > 300
    code = f"""
import importlib, sys
loaded = {{}}  # library -> the first module that imports it
for name in {modules!r}:
    importlib.import_module(name)
    for library in {HEAVY!r}:
        if library in sys.modules:
            loaded.setdefault(library, name)
print(loaded)
"""
    assert in_fresh_process(code) == "{}"


def test_first_use_replaces_the_proxies_in_all_modules():
    code = """
import sys
from vlrl.functional import kl
from vlrl.methods.core import advantage
import vlrl.services.lazy as lazy
assert "torch" not in sys.modules and not isinstance(3, advantage.Tensor)
proxy = kl.torch
assert proxy.ones(2).sum() == 2  # through the proxy
import torch
assert kl.torch is torch and advantage.nn is torch.nn and kl.Tensor is torch.Tensor and lazy.torch is torch
assert proxy.float32 is torch.float32  # a proxy that is held elsewhere goes on working
from vlrl.functional import returns
assert returns.torch is torch
print("done")
"""
    assert in_fresh_process(code) == "done"


def test_no_grad_holds_in_functions_and_only_inside_generators():
    torch = pytest.importorskip("torch")
    from vlrl.services.lazy import no_grad

    @no_grad
    def plain() -> bool:
        return torch.is_grad_enabled()

    @no_grad
    def several():
        yield torch.is_grad_enabled()
        yield torch.is_grad_enabled()

    assert plain() is False and plain.__name__ == "plain"
    for inside in several():
        assert inside is False and torch.is_grad_enabled()


@pytest.mark.parametrize(
    "words",
    [["--help"], ["list"], ["list", "reward"], ["list", "policy_loss", "gspo"], ["show", "quickstart"]],
)
def test_looking_around_imports_no_torch(words):
    code = f"""
import sys
sys.argv = {["vlrl", *words]}
try:
    from vlrl.cli import main
    main()
finally:
    assert "torch" not in sys.modules
"""
    assert in_fresh_process(code)


def test_the_package_offers_its_api_without_torch():
    code = """
import sys, vlrl
vlrl.Row, vlrl.Config, vlrl.register
assert "torch" not in sys.modules and set(vlrl.__all__) <= set(dir(vlrl))
"""
    in_fresh_process(code)
    import vlrl

    assert all(getattr(vlrl, name) is not None for name in vlrl.__all__)
    with pytest.raises(AttributeError, match="it offers Config"):
        _ = vlrl.trainn
