# Two commands: `make demo` and `make test`. Both set up .venv first; nothing outside this folder changes, except
# that they install Debian's EGL packages where they are missing and they may. `make test-cpus` is for who changes
# what computes, `make docs` makes a site of the pages.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-cpus table docs install egl clean

demo: install egl
	$(BIN)/ttm demo --out demo_out

test: install egl
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q --numprocesses 3 --dist loadfile

# The tests that compute with PyTorch, on the CPUs that its libraries can take this one for, so that no test
# holds for one kind of CPU alone. OpenVINO cannot be told; see policy/openvino_engine.py.
NUMERICAL := tests/policy tests/training/cloning tests/training/common tests/training/study
CPUS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=SSE41 ONEDNN_MAX_CPU_ISA=AVX2 \
  ONEDNN_MAX_CPU_ISA=AVX512_CORE_AMX MKL_CBWR=COMPATIBLE
THREADS := 1 2

test-cpus: install egl
	@log=$$(mktemp) && trap 'rm -f $$log' EXIT && failed=0; \
	for cpu in $(CPUS); do for threads in $(THREADS); do \
	  env $$(echo $$cpu | tr , ' ') OMP_NUM_THREADS=$$threads $(BIN)/python -m pytest -q \
	    --numprocesses 2 --dist loadfile $(NUMERICAL) >$$log 2>&1 </dev/null || { failed=1; cat $$log; }; \
	  echo "$$cpu OMP_NUM_THREADS=$$threads: $$(tail -n 1 $$log)"; \
	done; done; exit $$failed

# The table of README.md's first hour: a folder for each of CELLS, which are TASK-DEMONSTRATIONS-START-STEPS. All take
# many hours; `make table CELLS="pick-25-frozen-250 pick-25-scratch-250"` makes some of them. What is there is not made
# again, and a training that was interrupted goes on.
CELLS := $(foreach task,open_drawer pick,$(foreach number,25 100,$(foreach start,scratch vision frozen shipped,\
  $(foreach steps,250 1000 4000,$(task)-$(number)-$(start)-$(steps)))))
scratch :=
vision := --vision-weights shipped
frozen := --vision-weights shipped --freeze-vision
shipped := --init shipped --freeze-vision

table: $(CELLS:%=runs/table/%/evaluation/result.json)
	$(BIN)/ttm compare $(^:/result.json=) --out runs/table

runs/table/%/evaluation/result.json: | egl
	$(if $(filter scratch vision frozen shipped,$(word 3,$(subst -, ,$*))),,$(error $*: give TASK-DEMONSTRATIONS-START-STEPS))
	@set -e -- $(subst -, ,$*) && out=runs/table/$* data=demos/table/$$1 && \
	$(BIN)/ttm collect --task $$1 --episodes $$2 --out $$data && \
	$(BIN)/ttm train --data $$(ls $$data/*.hdf5 | head -n $$2) --out $$out --steps $$4 $($(word 3,$(subst -, ,$*))) \
	  $$(test -e $$out/resume && echo --resume) && \
	$(BIN)/ttm evaluate --checkpoint $$out/best.safetensors --task $$1 --episodes 100 --videos 0 \
	  --out $$out/evaluation

docs: install
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file .docs/mkdocs.yml
	@echo "python3 -m http.server --directory site shows it on http://localhost:8000"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$(PYTHON) is missing or older than 3.10; name a newer one: make PYTHON=python3.11 demo"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "venv is missing; on Debian or Ubuntu run: sudo apt-get install -y python3-venv"; exit 1; }
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[train,kitchen,ros,web,babyai,convert,look,wandb,export,serve,dev]'
	@touch $@

# Off-screen rendering. Try it first: where a GPU's driver brings its own EGL, nothing is missing.
RENDER := import os; os.environ.setdefault("MUJOCO_GL", "egl"); import mujoco; \
  mujoco.Renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), 8, 8).close()
EGL_PACKAGES := libegl1 libgl1-mesa-dri

egl: install
	@$(BIN)/python -c '$(RENDER)' >/dev/null 2>&1 || { \
	  if ! command -v apt-get >/dev/null; then sudo=none; \
	  elif [ "$$(id -u)" = 0 ]; then sudo=; \
	  elif sudo -n true 2>/dev/null; then sudo="sudo -n"; else sudo=none; fi; \
	  if [ "$$sudo" = none ]; then \
	    echo "EGL is missing, which renders the robot's cameras. Run: sudo apt-get install -y $(EGL_PACKAGES)"; exit 1; \
	  fi; \
	  echo "installing $(EGL_PACKAGES)"; \
	  $$sudo apt-get update -q && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q $(EGL_PACKAGES) \
	    && $(BIN)/python -c '$(RENDER)'; }

clean:
	rm -rf $(VENV) demo_out site
