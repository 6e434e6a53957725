# One command for each habit; plain `make` lists them. Each makes its own .venv if there is none, or if setup.cfg is newer.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
DEMO_INSTALLED := .venv/.demo-installed
BENCH := .venv-bench/bin
BENCH_INSTALLED := .venv-bench/.installed
SITE := .venv-site/bin
SITE_INSTALLED := .venv-site/.installed
ARCHIVE := build/environment.tar.gz
SPARK_CLASSES := build/spark_classes.jsa
BENCHMARKS ?= throughput read_arrow write_throughput typed_values changes latest many_topics micro_batches kafka_to_kafka latency_parts exactly_once_cost end_to_end cold_start planning memory requests events_cost
PYTHONS ?= 3.11 3.12 3.13 3.14
PYSPARKS ?= 4.0 4.1 4.2
# Their users have older Arrows too; the newest is in .venv.
ARROW_4.0 := pyarrow==18.0.* numpy==1.26.*
ARROW_4.1 := pyarrow==21.0.*
ARROW_4.2 := pyarrow==23.0.*
SLOW ?= slow or thorough or budget
RELEASES ?= 2.8.2 3.3.2 3.9.1 4.0.2 4.1.1 4.4.0
# By Go, because the package on PyPI downloads a program from elsewhere.
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
# Continuous integration runs a failed test up to twice more, as that of Kafka does, half a minute later, because shared
# machines have slow moments, and shows all.
RERUNS := $(if $(CI),--reruns 2 --reruns-delay 30 --rerun-show-tracebacks)
# Workers with one cluster for all, which take whole files in the order of tests/conftest.py, one of them those with Spark. On
# two cores three of them wait so much that nothing is late; two, if the tests are slow ones.
PARALLEL_TESTS := $(BIN)/python -m pytest $(RERUNS) --dist loadfile --no-loadscope-reorder --numprocesses

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all kafka-releases coverage changes lint docs site site-release dist sbom bench recovery frameworks simulate compat connect pipelines sail archive cluster-test java

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile

demo: java $(DEMO_INSTALLED) ## start three brokers, and a Spark query on two executors, and watch the caches follow the leaders
	$(BIN)/kafkameta demo

test: java $(INSTALLED) $(SPARK_CLASSES) ## check that the project works, in five minutes on two cores: all tests except the slow ones
	$(PARALLEL_TESTS) 3 -m "not slow and not thorough"

test-slow: export KAFKAMETA_PROFILE := $(if $(findstring thorough,$(SLOW)),slow,ci)
test-slow: java $(INSTALLED) $(SPARK_CLASSES) ## run the slow tests; SLOW=slow leaves out the thorough ones
	$(PARALLEL_TESTS) 2 -m "$(SLOW)"

test-all: test test-slow kafka-releases ## run all tests

kafka-releases: java $(INSTALLED) ## run the tests on other releases of Kafka, two minutes each; RELEASES="2.8.2 ..." chooses
	RELEASES="$(RELEASES)" $(BIN)/python -m pytest $(RERUNS) --numprocesses 2 --dist loadgroup tests/releases/release.py

coverage: java $(INSTALLED) ## measure which statements unit and wire tests run; fails below the figure in pyproject.toml
	$(BIN)/coverage run -m pytest -m "not slow and not thorough" tests/unit tests/wire
	$(BIN)/coverage report

changes: java $(INSTALLED) ## start PostgreSQL and Debezium beside Kafka, and compare a table with its copy
	$(BIN)/python -m pytest $(RERUNS) tests/changes/parts.py tests/changes/equality.py

lint: $(INSTALLED) ## check style, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --quiet .github
	@if command -v go >/dev/null; then go run $(ACTIONLINT); else echo "No Go here: the workflows are not checked" >&2; fi

docs: $(INSTALLED) ## write the generated parts of the documentation
	$(BIN)/python -m docs.generate

site: $(SITE_INSTALLED) $(INSTALLED) ## build the pages and an API reference in build/site, and check them in a browser
	$(SITE)/mkdocs build --strict
	$(BIN)/python -m pytest tests/site/built_site.py

site-release: $(SITE_INSTALLED) ## publish the site of a VERSION beside those of the versions before, in the branch gh-pages
	git config user.name github-actions
	git config user.email github-actions@users.noreply.github.com
	PATH="$(CURDIR)/$(SITE):$$PATH" mike deploy --push --update-aliases $(VERSION) latest
	PATH="$(CURDIR)/$(SITE):$$PATH" mike set-default --push latest

dist: java $(INSTALLED) ## build sdist and wheel, and try the wheel with the lowest and highest dependencies; PYTHONS="3.11 ..." chooses
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/python tests/compat/installed.py dist/*.whl $(PYTHONS)

sbom: $(INSTALLED) ## write what the wheel in dist/ installs to build/sbom.cdx.json
	$(PYTHON) -m venv --clear --without-pip build/wheel
	$(BIN)/uv pip install --quiet --python build/wheel dist/*.whl
	$(BIN)/cyclonedx-py environment --output-reproducible --output-file build/sbom.cdx.json build/wheel

bench: java $(BENCH_INSTALLED) ## measure speed beside the JVM source and sink, for two hours; BENCHMARKS="throughput ..." chooses
	for one in $(BENCHMARKS); do $(BENCH)/python -m benchmarks.$$one --json docs/benchmarks/$$one.json || exit 1; done
	$(BENCH)/python -m docs.generate
	$(BENCH)/python -m benchmarks.plots

# Each in an environment of its own: they want other releases of pyarrow and confluent-kafka.
frameworks: java $(BENCH_INSTALLED) ## measure copies of a topic beside quixstreams, PyFlink and others, for half an hour
	[ -x .venv-quixstreams/bin/python ] || $(PYTHON) -m venv .venv-quixstreams
	.venv-quixstreams/bin/python -m pip install --quiet 'quixstreams>=3.28,<4'
	[ -x .venv-pyflink/bin/python ] || $(PYTHON) -m venv .venv-pyflink
	.venv-pyflink/bin/python -m pip install --quiet 'apache-flink>=2.3,<3'
	$(BENCH)/python -m benchmarks.frameworks --json docs/benchmarks/frameworks.json

recovery: java $(BENCH_INSTALLED) ## measure what a moving leader costs a running reader
	$(BENCH)/python -m benchmarks.recovery --json docs/benchmarks/recovery.json
	$(BENCH)/python -m docs.generate

simulate: $(BENCH_INSTALLED) ## simulate thousands of metadata caches through a rolling restart
	$(BENCH)/python -m benchmarks.simulate

# One after the other, whatever --jobs says: each installs this folder, and writes into it.
compat: java $(INSTALLED) ## run tests on older releases of pyspark, each in an environment of its own; PYSPARKS="4.0 ..." chooses
	for release in $(PYSPARKS); do $(MAKE) compat-$$release || exit 1; done

compat-%: $(INSTALLED)
	[ -x .venv-$*/bin/python ] || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --editable '.[compat]' 'pyspark==$*.*' $(ARROW_$*)
	.venv-$*/bin/python -m pytest -m "not slow and not thorough" tests/unit/test_arrow_arrays.py tests/unit/typed \
	tests/unit/changes tests/unit/kafka/records
	.venv-$*/bin/python tests/compat/smoke.py
	$(if $(STREAMS),,.venv-$*/bin/python tests/compat/table_formats.py)
	.venv-$*/bin/python -m pytest $(RERUNS) tests/compat/streams.py tests/spark/test_typed_values.py \
	tests/spark/test_typed_sink.py $(if $(STREAMS),-k "$(STREAMS)")

connect: java ## try Spark Connect, in an environment of its own
	[ -x .venv-connect/bin/python ] || $(PYTHON) -m venv .venv-connect
	.venv-connect/bin/python -m pip install --quiet --editable '.[testing]' 'pyspark[connect]>=4.2,<5' 'pandas<3'
	.venv-connect/bin/python tests/compat/connect.py

pipelines: java ## try Spark Declarative Pipelines, in an environment of its own
	[ -x .venv-pipelines/bin/python ] || $(PYTHON) -m venv .venv-pipelines
	.venv-pipelines/bin/python -m pip install --quiet --editable '.[compat]' 'pyspark[pipelines]>=4.3,<5'
	.venv-pipelines/bin/python -m pytest $(RERUNS) tests/compat/pipelines.py

# pyspark-client has no resolver for the jars of Kafka.
sail: java $(INSTALLED) ## try Sail, a Spark without a JVM, in an environment of its own
	[ -x .venv-sail/bin/python ] || $(PYTHON) -m venv .venv-sail
	.venv-sail/bin/python -m pip install --quiet --editable '.[testing]' 'pysail>=0.7.2,<0.8' 'pyspark-client==4.2.*' 'pandas<3'
	$(BIN)/python -c 'from pyspark_kafka_meta.testing import kafka_config, maven_jars; maven_jars.resolve_jars(kafka_config.KafkaRelease().jars)'
	.venv-sail/bin/python tests/compat/sail.py

archive: java $(INSTALLED) $(ARCHIVE) ## pack an environment, and have executors read with it alone
	$(BIN)/python tests/compat/archive.py $(ARCHIVE)

cluster-test: java $(INSTALLED) $(ARCHIVE) ## run Spark and Kafka on several hosts, which are network namespaces; needs root on Linux
	$(BIN)/python -m tests.cluster.run $(RERUNS) $(if $(HOSTS),-k "$(HOSTS)")

java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'); \
	[ "$${version:-0}" -ge 17 ] || { echo "Spark needs Java 17 or later, and $$java is $${version:+version }$${version:-missing}:" \
	"install a JDK (apt-get install openjdk-17-jre-headless, brew install openjdk@17) or set JAVA_HOME to one." >&2; exit 1; }

# Halves the CPU time in which Spark starts in tests: Python finds bytecode, and Java an archive of the classes that a first
# application used.
$(SPARK_CLASSES): $(INSTALLED)
	$(BIN)/python -W ignore tests/compiled_pyspark.py
	mkdir -p $(@D)
	PATH="$(CURDIR)/$(BIN):$$PATH" spark-submit --driver-java-options "-XX:ArchiveClassesAtExit=$@ -Xlog:disable" tests/compat/smoke.py

$(ARCHIVE): setup.cfg $(shell find pyspark_kafka_meta -name '*.py')
	[ -x .venv-archive/bin/python ] || $(PYTHON) -m venv .venv-archive
	.venv-archive/bin/python -m pip install --quiet --upgrade '.[cli]' venv-pack
	mkdir -p build
	.venv-archive/bin/venv-pack --quiet --compress-level 1 --prefix .venv-archive --force --output $@

# Measured is what a user has, without the tests' packages: the protocol library imports one of them, hypothesis, wherever
# it finds it, which costs each new process 0.1 s.
$(INSTALLED): EXTRAS := test,lint,dist
# What the README installs, into the same environment.
$(DEMO_INSTALLED): EXTRAS := spark,cli,testing
$(BENCH_INSTALLED): EXTRAS := bench
$(SITE_INSTALLED): EXTRAS := site

# The package must lie on sys.path as a folder: Spark looks for data sources with pkgutil, which sees no import hooks.
# setup.cfg names package_dir for that.
$(INSTALLED) $(DEMO_INSTALLED) $(BENCH_INSTALLED) $(SITE_INSTALLED): setup.cfg
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "Python 3.11 or later is needed, and '$(PYTHON)' is not: name one, as in make PYTHON=python3.12 ..." >&2; exit 1; }
	[ -x $(@D)/bin/python ] || $(PYTHON) -m venv $(@D)
	@echo "Packages of the extras $(EXTRAS) are installed into $(@D) where it lacks them"
	$(@D)/bin/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	touch $@
