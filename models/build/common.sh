# Sourced by the other scripts: places, and packages from their registries by the registries' own clients.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
MODELS=$(dirname "$HERE")
WORK=${WORK:-$(dirname "$MODELS")/build/starters}
PYTHON=${PYTHON:-python}
TOOLS=$WORK/tools
PACKAGES=$WORK/packages
mkdir -p "$WORK/runs" "$PACKAGES"
export PYTHONPATH=$TOOLS${PYTHONPATH:+:$PYTHONPATH}

quintet() { "$PYTHON" -m quintet "$@"; }

# Packages of the npm registry, with their versions; nothing of them is executed.
npm_packages() { npm install --prefix "$PACKAGES" --ignore-scripts --no-audit --no-fund "$@"; }

# A tool of PyPI, beside the environment that quintet is installed in.
pypi_tool() { "$PYTHON" -m pip install --quiet --no-deps --target "$TOOLS" "$@"; }

# Packages of Debian: the scripts read what they install, and do not install it themselves.
debian_packages() {
  dpkg-query --show "$@" > /dev/null || { echo "install first: apt-get install $*" >&2; exit 1; }
}

# card NAME ...: replace models/NAME by the export of the run of this name.
card() {
  rm -rf "$WORK/cards/$1"
  mkdir -p "$WORK/cards"
  "$PYTHON" "$HERE/card.py" "$WORK/runs/$1" "$WORK/cards/$1" "${@:2}"
  rm -rf "${MODELS:?}/$1"
  mv "$WORK/cards/$1" "$MODELS/$1"
}
