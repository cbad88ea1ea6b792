#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the product code (everything but tests/), so that it stays easy to find one's way in:

  circles    no two .c files of a room call each other, not by way of others either
  names      no function name of one word is defined in several files, so a backtrace says where one is
  tags       no struct, union or enum tag is defined in several files
  functions  none is longer than 60 lines
  lines      none is longer than 120 characters (tests too)
  format     clang-format 14 changes nothing (tests too)
  limits     every ctest has a TIMEOUT: none hangs for ever

Usage: test_house.py SOURCE-DIRECTORY BUILD-DIRECTORY [CHECK...]     Exit: 0 all hold, 1 one does not, 77 a tool is missing here.
"""
import collections
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ALLOWED_CIRCLES = [{'connection.c', 'listener.c'}]  # a listener makes connections, and each tells it of its end
# Left in the kernels (cuda/ops*): to be renamed and cut.
ALLOWED_NAMES = set()
ALLOWED_TAGS = set()
ALLOWED_LONG = set()

# Include directions (test_rooms.sh) leave no way for a circle through two of them. The longest prefix names the room.
ROOMS = ['cuda', 'hostarena', 'proto', 'kvd/store', 'kvd', 'client/kvdctl', 'client/demo', 'client/replay', 'client']
LONGEST_FUNCTION = 60
LONGEST_LINE = 120
SOURCE = re.compile(r'\.(c|h|cu|cuh)$')

failures = 0


def fail(sentence):
    global failures
    failures += 1
    print('FAILED: ' + sentence)


def need(program):
    if not shutil.which(program):
        print(f'skipped: {program} is not installed (deploy/setup.sh --tests)')
        sys.exit(77)


def sources(top):
    skip = ('build', 'out', '.')
    found = [p.relative_to(top) for d in sorted(top.iterdir()) if d.is_dir() and not d.name.startswith(skip)
             for p in d.rglob('*') if SOURCE.search(p.name)]
    return sorted(str(p) for p in found if p.parts[0] != 'shared')


def code_of(text):
    """The text without comments, strings and preprocessor lines that include."""
    text = re.sub(r'/\*.*?\*/', ' ', text, flags=re.S)
    text = re.sub(r'//[^\n]*', ' ', text)
    text = re.sub(r'"(\\.|[^"\\\n])*"', '""', text)
    return re.sub(r'^\s*#\s*include[^\n]*', '', text, flags=re.M)


class Tag:
    def __init__(self, line):
        self.name, self.file, self.kind, first, last, self.local = line.split('\t')
        self.first, self.last = int(first), int(last) if last.isdigit() else int(first)
        self.local = self.local == 'file'


def tags_of(top, files):
    command = ['ctags', '-x', '--_xformat=%N\t%F\t%{kind}\t%{line}\t%{end}\t%{file}', '--kinds-C=fsug',
               '--kinds-C++=fsug', '--kinds-CUDA=fsug', '--fields=+f', '--extras=+F', '-L', '-']
    out = subprocess.run(command, cwd=top, input='\n'.join(files), capture_output=True, text=True, check=True).stdout
    return [t for t in (Tag(line) for line in out.splitlines()) if not t.name.startswith('__anon')]


def room_of(file):
    return max((r for r in ROOMS if file.startswith(r + '/')), key=len, default='')


def calls_of(text, functions):
    """Pairs of file and function: for each .c file, those of its room that it names and does not define itself."""
    outward = collections.defaultdict(dict)  # room, name -> file
    own = collections.defaultdict(set)
    for tag in functions:
        own[tag.file].add(tag.name)
        if tag.file.endswith('.c') and not tag.local and tag.name != 'main': outward[room_of(tag.file)].setdefault(tag.name, tag.file)
    word = re.compile(r'(?<![\w.])(?<!->)(?<!struct )(?<!union )(?<!enum )[a-z_]\w+')
    calls = {}
    for file, code in text.items():
        if not file.endswith('.c'): continue
        near = outward[room_of(file)]
        calls[file] = [(near[w], w) for w in sorted(set(word.findall(code)) - own[file]) if near.get(w, file) != file]
    return calls


def circles_of(arrows):
    """Tarjan's strongly connected components of two and more."""
    index, low, stack, circles = {}, {}, [], []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in arrows[v]:
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            circle = set(stack[stack.index(v):])
            del stack[stack.index(v):]
            if len(circle) > 1: circles.append(circle)

    for v in arrows:
        if v not in index: visit(v)
    return circles


def check_circles(text, tags):
    calls = calls_of(text, [t for t in tags if t.kind == 'function'])
    circles = circles_of({file: {to for to, _ in calls[file]} for file in calls})
    for circle in circles:
        if {Path(file).name for file in circle} in ALLOWED_CIRCLES: continue
        fail('these files call each other in a circle: ' + ' '.join(sorted(circle)))
        for file in sorted(circle):
            ways = ', '.join(f'{name} of {to}' for to, name in calls[file] if to in circle)
            print(f'    {file} calls {ways}')
    return f'{len(circles)} circles of files that call each other'


def several(tags):
    files = collections.defaultdict(set)
    for tag in tags: files[tag.name].add(tag.file)
    return {name: sorted(where) for name, where in files.items() if len(where) > 1}


def check_names(tags):
    shared = several(t for t in tags if t.kind == 'function')
    one = {n: w for n, w in shared.items() if '_' not in n and n != 'main'}
    for name, where in sorted(one.items()):
        if name not in ALLOWED_NAMES: fail(f'{name}() is defined in several files, name subject and verb: ' + ' '.join(where))
    return f'{len(one)} names of one word in several files ({len(shared)} of any length)'


def check_tags(tags):
    shared = several(t for t in tags if t.kind in ('struct', 'union', 'enum'))
    for name, where in sorted(shared.items()):
        if name not in ALLOWED_TAGS: fail(f'the tag {name} is defined in several files: ' + ' '.join(where))
    return f'{len(shared)} tags in several files'


def check_functions(tags):
    lengths = sorted(((t.last - t.first + 1, t.name, t.file) for t in tags if t.kind == 'function'), reverse=True)
    for lines, name, file in lengths:
        if lines > LONGEST_FUNCTION and name not in ALLOWED_LONG: fail(f'{file}: {name}() has {lines} lines, the most is {LONGEST_FUNCTION}')
    lines, name, file = lengths[0]
    return f'{len(lengths)} functions, the longest is {name}() of {file} with {lines} lines'


def check_lines(top):
    files = sources(top)
    for file in files:
        for number, line in enumerate((top / file).read_text().split('\n'), 1):
            if len(line) > LONGEST_LINE: fail(f'{file}:{number} has {len(line)} characters, the most is {LONGEST_LINE}')
    return f'{len(files)} files'


def check_format(top):
    need('clang-format')
    version = subprocess.run(['clang-format', '--version'], capture_output=True, text=True).stdout
    if ' 14.' not in version:
        print('skipped: ' + version.strip() + '; other versions than 14 format otherwise')
        sys.exit(77)
    files = sources(top)
    out = subprocess.run(['clang-format', '--dry-run', '--Werror', *files], cwd=top, capture_output=True, text=True)
    wrong = sorted(set(re.findall(r'^(\S+?):\d+:\d+: error', out.stderr, flags=re.M)))
    for file in wrong: fail(f'{file} is not formatted: clang-format -i {file}')
    if out.returncode and not wrong: fail('clang-format: ' + out.stderr)
    return f'{len(files)} files'


def check_limits(build):
    out = subprocess.run(['ctest', '--show-only=json-v1'], cwd=build, capture_output=True, text=True, check=True).stdout
    tests = json.loads(out)['tests']
    for test in tests:
        if not any(p['name'] == 'TIMEOUT' for p in test.get('properties', [])): fail(test['name'] + ' has no TIMEOUT')
    return f'{len(tests)} tests'


def main():
    top, build, chosen = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3:]
    need('ctags')
    product = [f for f in sources(top) if not f.startswith('tests/')]
    text = {f: code_of((top / f).read_text()) for f in product}
    tags = tags_of(top, product)
    if len(product) < 100 or len(tags) < 1000: fail(f'{len(product)} files with {len(tags)} tags: most of kvd was not found')
    checks = {
        'circles': lambda: check_circles(text, tags),
        'names': lambda: check_names(tags),
        'tags': lambda: check_tags(tags),
        'functions': lambda: check_functions(tags),
        'lines': lambda: check_lines(top),
        'format': lambda: check_format(top),
        'limits': lambda: check_limits(build),
    }
    for name in chosen or checks: print(f'{name}: {checks[name]()}')
    lines = [sum((top / f).read_text().count('\n') for f in sources(top) if f.startswith('tests/') == t) for t in (False, True)]
    print('%d lines of product code, %d of tests' % tuple(lines))
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
