#!/bin/sh
# The programs that some tests run. They are installed where this is root and there is apt; elsewhere the tests
# that need one are skipped by name, and the last line of `make test` counts them.
# axe-core, which looks for faults of accessibility in the pages, is a package of npm.
if command -v npm >/dev/null && [ ! -f build/npm/node_modules/axe-core/axe.min.js ]; then
  npm install --silent --no-audit --no-fund --prefix build/npm axe-core@4 >/dev/null 2>&1 ||
    echo "not installed: axe-core; the tests that need it are skipped (npm install --prefix build/npm axe-core)"
fi
missing=""
for pair in bwrap:bubblewrap iverilog:iverilog chromium:chromium zsh:zsh fish:fish; do
  command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair##*:}"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  # shellcheck disable=SC2086
  (apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing) >/dev/null 2>&1 && exit 0
fi
echo "not installed:$missing; the tests that need one are skipped (apt-get install$missing)"
