# shellcheck shell=bash
# tools/run and tools/test source this file. It creates .venv once and installs
# the package with the extras in $EXTRAS. A stamp file has the checksum of the
# installed setup.cfg, so nothing is installed again if it did not change.
#
#   JAXRL_VENV    another folder for the virtual environment
#   JAXRL_EXTRAS  further extras, e.g. cuda or tpu,hf
#   PYTHON        the interpreter that creates it (3.11 or newer)

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=${JAXRL_VENV:-$ROOT/.venv}

say() { printf '%s\n' "$*" >&2; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
        >/dev/null 2>&1; then
      command -v "$candidate"
      return 0
    fi
  done
  say "No Python 3.11 or newer found. Install one (Debian, Ubuntu:" \
      "apt install python3 python3-venv) or set PYTHON=/path/to/python3."
  return 1
}

make_venv() {
  local python
  python=$(find_python) || return 1
  if ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
    say "$python has no venv module. On Debian or Ubuntu:" \
        "apt install python3-venv; then run this again."
    return 1
  fi
  say "Making $VENV with $("$python" --version) (once)."
  "$python" -m venv "$VENV"
}

# Shows the large downloads of pip, whose other lines are a hundred.
show_progress() {
  local line name
  while IFS= read -r line; do
    case $line in
      *Downloading\ *[0-9][0-9].[0-9]\ MB\)*)
        name=${line##*Downloading }
        name=$(cut -d- -f1,2 <<<"${name%% *}")
        say "  $name (${line##*(}"
        ;;
      Installing\ collected*) say "  unpacking" ;;
    esac
  done
}

ensure_env() {
  local extras want stamp
  extras=$(printf '%s,%s' "${EXTRAS:-}" "${JAXRL_EXTRAS:-}" |
    tr ',' '\n' | sort -u | sed '/^$/d' | paste -sd, -)
  [ -x "$VENV/bin/python" ] || make_venv || return 1
  stamp="$VENV/.installed-${extras:-base}"
  want="$(cksum <"$ROOT/setup.cfg") $ROOT"
  if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
    # If making .venv is interrupted, it has an interpreter without pip.
    "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || make_venv || return 1
    say "Installing jaxrl_reason${extras:+[$extras]} into $VENV" \
        "(once; a minute or two, longer with tpu or cuda). Large downloads:"
    "$VENV/bin/python" -m pip install --progress-bar off \
      --disable-pip-version-check --editable "$ROOT${extras:+[$extras]}" |
      show_progress || {
      say "Installation failed. The lines above have the reason."
      return 1
    }
    printf '%s' "$want" >"$stamp"
  fi
}
