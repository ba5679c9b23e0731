#!/usr/bin/env bash
# Sets up what the tests need in build/, then runs linters, type checkers and all tests. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash tests/run.sh [--python PATH-OR-VERSION] [--no-browser] [--no-lint] [--fresh] [--find] [-- PYTEST-ARGUMENTS]

  --python X      interpreter: a path, or a version such as 3.13 that is looked for on PATH and under pyenv
                  (default: python3 if it is 3.11 or newer, else the oldest such version that is found)
  --no-browser    leave out the tests that open JupyterLab in Chromium
  --no-lint       leave out ruff, mypy and the checks of the TypeScript code
  --fresh         make the virtual environment anew
  --find          print the interpreter and do nothing
  -- ...          goes to pytest as it is: bash tests/run.sh -- tests/plan -x

One virtual environment for each Python version is kept in build/.
TEXT
}

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'tests/run.sh: %s\n' "$*" >&2; exit 1; }

# A pyenv shim answers `command -v` even where its version is not active: only a run that works counts.
runs_at_least_311() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_version() { # 3.13 -> path
  local candidate
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1"{,.*}/bin/python; do
    if runs_at_least_311 "$candidate"; then command -v "$candidate"; return; fi
  done
  return 1
}

find_python() { # path, version or nothing -> path
  local version
  if [[ "$1" =~ ^3\.[0-9]+$ ]]; then find_version "$1"; return; fi
  if [[ -n "$1" ]]; then runs_at_least_311 "$1" && command -v "$1"; return; fi
  if runs_at_least_311 python3; then command -v python3; return; fi
  for version in 3.11 3.12 3.13 3.14; do find_version "$version" && return; done
  return 1
}

wanted="" browser=yes lint=yes fresh=no find=no
while (($#)); do
  case "$1" in
    --python) [[ $# -ge 2 ]] || fail "--python needs a path or a version."; wanted="$2"; shift 2 ;;
    --no-browser) browser=no; shift ;;
    --no-lint) lint=no; shift ;;
    --fresh) fresh=yes; shift ;;
    --find) find=yes; shift ;;
    --help | -h) usage; exit 0 ;;
    --) shift; break ;;
    *) usage >&2; fail "unknown option '$1'." ;;
  esac
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="$(find_python "$wanted")" || fail "no Python ${wanted:-3.11 or newer} found: install one, or name it with --python."
if [[ "$find" == yes ]]; then echo "$python"; exit 0; fi
version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
environment="build/venv-$version"

say "Python $version ($python), environment $environment"
[[ "$fresh" == yes ]] && rm -rf "$environment"
[[ -x "$environment/bin/python" ]] || "$python" -m venv "$environment"
python="$PWD/$environment/bin/python"
"$python" -m pip install --quiet --disable-pip-version-check ".[test]"

if [[ "$browser" == yes ]]; then
  say "Chromium"
  if ! "$python" tests/install_browser.py; then
    [[ -z "${CI:-}" ]] || fail "the browser tests cannot run without it."
    echo "The browser tests will be skipped; --no-browser leaves them out."
  fi
fi

if [[ "$lint" == yes ]]; then
  say "ruff"
  "$python" -m ruff check .
  say "mypy"
  "$python" -m mypy
  say "TypeScript"
  "$python" tests/check_extension.py
fi

say "pytest"
[[ "$browser" == yes ]] && selection=() || selection=(-m "not browser")
# Tests that share a JupyterLab or a Ray cluster stay on one process.
"$python" -m pytest -n auto --maxprocesses 4 --dist loadgroup "${selection[@]}" "$@"
