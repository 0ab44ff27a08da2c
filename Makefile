# One environment, .venv/, at the root; every target makes it if it is missing.
#   make demo            phantom CT series -> nodules as DICOM SEG and one HTML report, on this machine
#   make demo-brain      brain MR from DICOM -> three labels as DICOM SEG and one HTML report, on this machine
#   make demo-skin       photographs of skin lesions -> eight classes and one HTML report, on this machine
#   make demo-alzheimer  T1-weighted MR -> two groups, Grad-CAM maps and one HTML report, on this machine
#   make demo-fraud      claims of providers -> two classes and one HTML report, on this machine
#   make demo-ecg        ECG recordings -> four rhythms and one HTML report, on this machine
#   make demo-care       codes of inpatients -> a part of a grid of networks, 14 classes and one HTML report, on this machine
#   make equality        the demo, and whether its model, masks and reports have the digests of tests/equality/demo.json
#   make quick           formatting, lint, types and the quick unit tests: two minutes
#   make test            everything CI runs without real sites (includes `make check`)
#   make check           formatting, lint, types, import contracts, `medweave validate --cwltool`
#   make validate-seeded  mistakes in a copy of the repository, one at a time: `medweave validate` must report each exactly once
#   make cases           the inputs of real-world bug reports that failed once; results in build/cases/summary.json
#   make leaks           fifty identifiers and secrets in what real runs are given, looked for in all that they write
#   make bench           each figure of docs/benchmarks.md, measured again on this machine
#   make testbed         a real Slurm, Kubernetes and login node on this machine (Debian, root); running parts are not restarted
#   make testbed-status  which part of it is up, which is not, and why
#   make testbed-down    end all of it; PURGE=1 removes the programs, environment and images too
#   make hybrid          one run over Slurm, a COMPSs release and pods, and the same on this machine alone; needs root, as testbed
#   make test-hybrid     the tests that need the testbed
#   make faults          breaks real jobs on the testbed in 21 ways, and compares what the sites say with what medweave says
#   make resume          SIGKILL to drivers of real runs at the sites, 23 times, and resumed runs: same result, no job twice; needs root
#   make conformance     CWL's own test suite with everything bound to one site: what passes with StreamFlow's local connector passes
#   make docs            generated reference pages and schemas
#   make docs-site       docs/ as a site that works offline: build/docs-site/index.html; a broken link or anchor is an error
#   make constraints     resolve the dependencies anew and pin them with hashes
# Options: PYTHON=python3.12   another interpreter (3.11 or newer)
#          TORCH=cpu           PyTorch's CPU build (0.2 GB instead of 5 GB), for machines without an NVIDIA GPU
#          STEPS=500           of demo and hybrid: a shorter training, for a first look on a slow machine; it finds less
#          CASES=30            of demo: fewer patients than 74; hybrid takes the demo's
#          TESTS='tests/hybrid/test_slurm.py …'   some of test-hybrid's files, or tests/hybrid/alone, which break parts of the testbed
#          LONG=1              test-hybrid with the tests that take minutes: Slurm's own clocks, what hybrid shows as well
#          SEED=1 JOBS_PER_KIND=5   of faults; SEED of resume, too
#          BENCH='slurm_array transfer_direct transfer_pod'   of bench: those that need the testbed up
#          SUITE=/path/of/cwl-v1.2 SITES='stock local slurm helm'   of conformance (stock local); the last two need the testbed
#          COMPSS_HOME=/path   an installation of COMPSs that hybrid's distributed training runs on, instead of torch.distributed
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
TORCH ?= default
BIN := .venv/bin
INSTALLED := .venv/.installed
TESTBED := deployments/testbed/testbed.py

.PHONY: help env demo demo-brain demo-skin demo-alzheimer demo-fraud demo-ecg demo-care equality quick test check validate-seeded cases leaks bench docs docs-site constraints clean testbed testbed-status testbed-down hybrid test-hybrid faults resume conformance
help:
	@sed -n '2,37p' Makefile | cut -c3-

# Where no byte code may be written (a read-only folder, the processes that tests start), each start would compile the packages again.
COMPILE := $(BIN)/python -m compileall -q core/medweave_core steps/medweave_steps connectors/medweave_connectors driver/medweave
env: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt deployments/environment/make-environment
	@deployments/environment/make-environment "$(PYTHON)" "$(TORCH)"
	@$(COMPILE)
	@touch $@

demo: $(INSTALLED)
	@$(BIN)/python deployments/demo/demo.py $(if $(STEPS),--steps $(STEPS)) $(if $(CASES),--cases $(CASES)) $(GATE)

demo-brain: $(INSTALLED)
	@$(BIN)/python deployments/demo/brain.py $(if $(STEPS),--steps $(STEPS)) $(if $(CASES),--cases $(CASES))

demo-skin: $(INSTALLED)
	@$(BIN)/python deployments/demo/skin.py $(if $(STEPS),--steps $(STEPS)) $(if $(CASES),--cases $(CASES))

demo-alzheimer: $(INSTALLED)
	@$(BIN)/python deployments/demo/alzheimer.py $(if $(STEPS),--steps $(STEPS)) $(if $(CASES),--cases $(CASES))

demo-fraud: $(INSTALLED)
	@$(BIN)/python deployments/demo/fraud.py $(if $(CASES),--cases $(CASES))

demo-ecg: $(INSTALLED)
	@$(BIN)/python deployments/demo/ecg.py $(if $(STEPS),--steps $(STEPS)) $(if $(CASES),--cases $(CASES))

demo-care: $(INSTALLED)
	@$(BIN)/python deployments/demo/care.py $(if $(CASES),--cases $(CASES))

# The runtime that is faster at the moment must not choose the masks.
equality: GATE := --gate-candidates float32:openvino
equality: demo
	@$(BIN)/python tests/equality/demo_digests.py build/demo

check: $(INSTALLED)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/medweave validate --cwltool

validate-seeded: $(INSTALLED)
	$(BIN)/python tests/validate/seeded.py

cases: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --cases-summary build/cases/summary.json tests/cases

leaks: $(INSTALLED)
	$(BIN)/python tests/leaks/leaks.py

# Six processes for two cores, because many tests wait; two for the quick tests, which do not. Side by side on a slow machine a test may
# miss a deadline: what fails is run again, one after the other. A test process that dies ends the run: with another in its place,
# pytest-xdist 3.8 waits for ever; what has not passed by then is run once more. In the order in which they are collected, the slow files
# come first (tests/conftest.py): pytest-xdist's own order begins with the files of many tests and ends with the slowest.
LOADFILE := --dist loadfile --no-loadscope-reorder --max-worker-restart 0
SIDE_BY_SIDE := -n 6 $(LOADFILE)
STARTED := $(shell date +%s)
TIMINGS = --timings=build/tests/$@.json --timings-since=$(STARTED)
quick: $(INSTALLED)
	@$(COMPILE)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2 $(LOADFILE) -m 'not slow' $(TIMINGS) tests/unit

test: check
	@$(COMPILE)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(TIMINGS) || case $$? in \
	  1) $(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(TIMINGS);; \
	  3) $(BIN)/python -m pytest $(SIDE_BY_SIDE) --unfinished $(TIMINGS);; \
	  *) exit 1;; \
	esac

BENCH ?= preprocess segment inference int8 gate_repeat quality driver second_run training_loop data_path deviation hybrid_numerics monitor parameter_server transfer_files transfer_ssh
bench: $(INSTALLED)
	@failed=; for name in $(BENCH); do \
	  echo "== $$name"; $(BIN)/python tests/bench/$$name.py || failed="$$failed $$name"; done; \
	  [ -z "$$failed" ] || { echo "above their limits, or failed:$$failed" >&2; exit 1; }

testbed: $(INSTALLED)
	@TORCH=$(TORCH) $(BIN)/python $(TESTBED) up

testbed-status: $(INSTALLED)
	@$(BIN)/python $(TESTBED) status

testbed-down: $(INSTALLED)
	@$(BIN)/python $(TESTBED) down $(if $(PURGE),--purge)

hybrid: testbed
	@COMPSS_HOME='$(COMPSS_HOME)' $(BIN)/python deployments/hybrid/hybrid.py $(if $(STEPS),--steps $(STEPS))

AT_SITES = -n 3 --max-worker-restart 0 $(if $(LONG),,-m 'not long') --ignore tests/hybrid/alone tests/hybrid
test-hybrid: $(INSTALLED)
	@$(COMPILE)
ifdef TESTS
	$(BIN)/python -m pytest $(TIMINGS) $(TESTS)
else
	$(BIN)/python -m pytest $(AT_SITES) $(TIMINGS) || case $$? in \
	  1) $(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(TIMINGS) --ignore tests/hybrid/alone tests/hybrid;; \
	  3) $(BIN)/python -m pytest $(AT_SITES) --unfinished $(TIMINGS);; \
	  *) exit 1;; \
	esac
endif

SEED ?= 1
JOBS_PER_KIND ?= 5
faults: $(INSTALLED)
	$(BIN)/python tests/faults/campaign.py --seed $(SEED) --jobs-per-kind $(JOBS_PER_KIND)

resume: $(INSTALLED)
	$(BIN)/python tests/resume/campaign.py --seed $(SEED)

CWLTEST := build/conformance/cwltest/bin/cwltest
conformance: $(INSTALLED) $(CWLTEST)
	$(BIN)/python tests/conformance/conformance.py $(SUITE) --cwltest $(abspath $(CWLTEST)) \
	  $(if $(SITES),--sites $(SITES)) $(if $(CASES),--cases $(CASES)) $(if $(KEEP),--keep)

$(CWLTEST): # on its own: it only calls
	$(PYTHON) -m venv build/conformance/cwltest
	build/conformance/cwltest/bin/pip install --quiet cwltest==2.7.20260814150058

docs: $(INSTALLED)
	$(BIN)/python docs/generate.py

SITE ?= build/docs-site
docs-site: $(INSTALLED)
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env docs '$(SITE)'

constraints: $(INSTALLED)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --all-extras \
	  --no-header --no-annotate --output-file constraints.txt pyproject.toml

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
