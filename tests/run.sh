#!/usr/bin/env bash
# Sets up what the tests need in build/, then runs linters, type checkers and all tests. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash tests/run.sh [--python X] [--no-browser] [--no-lint] [--keep] [--find] [-- PYTEST-ARGUMENTS]

  --python X      interpreter: a path, a name, or a version such as 3.13 that is looked for on PATH and under pyenv
                  (default: python3 if it is 3.11 or newer, else the oldest such version that is found)
  --no-browser    leave out the tests that open JupyterLab in Chromium, and the checks of the TypeScript code
  --no-lint       leave out ruff, mypy and the checks of the TypeScript code
  --keep          use the virtual environment of the last run again; it is made anew otherwise
  --find          print the interpreter and do nothing
  -- ...          goes to pytest as it is: bash tests/run.sh --keep -- tests/plan -x

The virtual environment is build/test-env-VERSION. What is tested is the package that pip built and installed there,
not the checkout: the tests run in a copy beside it, build/test-tree-VERSION, where no `alpaviz` can hide it.
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

wanted="" browser=yes lint=yes keep=no find=no
while (($#)); do
  case "$1" in
    --python) [[ $# -ge 2 ]] || fail "--python needs a path or a version."; wanted="$2"; shift 2 ;;
    --no-browser) browser=no; shift ;;
    --no-lint) lint=no; shift ;;
    --keep) keep=yes; shift ;;
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
environment="build/test-env-$version" tree="build/test-tree-$version"
root="$PWD"
failed=()

say "Python $version ($python), environment $environment"
[[ "$keep" == yes ]] || rm -rf "$environment"
[[ -x "$environment/bin/python" ]] || "$python" -m venv "$environment"
python="$root/$environment/bin/python"
"$python" -m pip install --quiet --disable-pip-version-check ".[test]"

if [[ "$browser" == yes ]]; then
  say "Chromium"
  "$python" tests/install_browser.py || fail "no Chromium for the browser tests; --no-browser leaves them out."
fi

if [[ "$lint" == yes ]]; then
  say "ruff"
  "$python" -m ruff check . || failed+=(ruff)
  say "mypy"
  "$python" -m mypy || failed+=(mypy)
  if [[ "$browser" == yes ]]; then
    say "TypeScript"
    "$python" tests/check_extension.py || failed+=(TypeScript)
  fi
fi

# Tests look beside themselves for the notebooks, the built browser code (here: what was installed) and its sources,
# which have twins in Python. `alpaviz/` has no __init__.py in the copy, so the installed package is imported.
say "pytest"
rm -rf "$tree"
mkdir -p "$tree/alpaviz" "$tree/extension" "$tree/build" build/screenshots
installed="$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/alpaviz"
cp -R pyproject.toml tests notebooks "$tree"
cp -R "$installed/static" "$tree/alpaviz"
cp -R "$environment/share/jupyter/labextensions/alpaviz-lab" "$tree/alpaviz/labextension"
cp -R extension/package-lock.json extension/src "$tree/extension"
axe=extension/node_modules/axe-core # from the checks of the TypeScript code; its test skips without
[[ ! -d "$axe" ]] || { mkdir -p "$tree/extension/node_modules"; cp -R "$axe" "$tree/extension/node_modules"; }
ln -s ../../screenshots "$tree/build/screenshots"
[[ -n "${ALPAVIZ_SHARED:-}" || ! -d ../shared ]] || export ALPAVIZ_SHARED="$root/../shared"
cd "$tree"
imported="$("$python" -c 'import alpaviz; print(alpaviz.__file__)')"
[[ "$imported" == "$installed/__init__.py" ]] || fail "the tests would import $imported, not the installed package."

[[ "$browser" == yes ]] && selection=() || selection=(-m "not browser")
# Tests that share a JupyterLab or a Ray cluster stay on one process.
"$python" -m pytest -rR -n auto --maxprocesses 4 --dist loadgroup "${selection[@]}" "$@" || failed+=(pytest)

if ((${#failed[@]})); then fail "failed: ${failed[*]}"; fi
