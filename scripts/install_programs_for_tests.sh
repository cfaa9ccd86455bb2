#!/bin/sh
# The programs that some tests run. They are installed where this is root and there is apt; elsewhere the tests
# that need one are skipped by name, and the last line of `make test` counts them.
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
