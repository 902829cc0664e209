"""Forms in which a value travels: what reach may say of each. One that it cannot follow must be `unknown`."""

# name: (the verdicts that are right, what stands in use.py below the kernels and the table).
HERE = {
    "registry": (
        "reaches unknown",
        """
REG={'a': lambda c: one_kernel[(1,)](0, **c)}
def run(k):
    REG[k](get_default_config(1,2))
import os
run(os.environ['k'])
""",
    ),
    "registry2": (
        "reaches unknown",
        """
def f(c):
    one_kernel[(1,)](0, **c)
REG={'a': f}
def run(k):
    REG[k](get_default_config(1,2))
import os
run(os.environ['k'])
""",
    ),
    "registry-get": (
        "reaches unknown",
        """
def f(c):
    one_kernel[(1,)](0, **c)
REG={'a': f}
def run(k):
    REG.get(k)(get_default_config(1,2))
import os
run(os.environ['k'])
""",
    ),
    "nonlocal": (
        "reaches unknown",
        """
def run(x):
    c = None
    def inner():
        nonlocal c
        c = get_default_config(1,2)
    inner()
    one_kernel[(1,)](x, **c)
run(0)
""",
    ),
    "global": (
        "reaches",
        """
G=None
def setit():
    global G
    G = get_default_config(1,2)
def run(x):
    one_kernel[(1,)](x, **G)
setit(); run(0)
""",
    ),
    "globals()": (
        "unknown",
        """
def run(x):
    globals()['H'] = get_default_config(1,2)
def go(x):
    one_kernel[(1,)](x, **H)
run(0); go(0)
""",
    ),
    "setattr": (
        "reaches unknown",
        """
class A: pass
a=A()
def run(x, n):
    setattr(a, n, get_default_config(1,2))
run(0,'q')
def go(x):
    one_kernel[(1,)](x, **a.q)
go(0)
""",
    ),
    "method": (
        "reaches",
        """
class A:
    def __init__(self):
        self.c = get_default_config(1,2)
    def go(self, x):
        one_kernel[(1,)](x, **self.c)
A().go(0)
""",
    ),
    "append": (
        "reaches unknown",
        """
L=[]
def fill():
    L.append(get_default_config(1,2))
fill()
def go(x):
    for c in L:
        one_kernel[(1,)](x, **c)
go(0)
""",
    ),
    "alias": (
        "overridden stopped unknown",
        """
def go(x):
    c = get_default_config(1,2)
    d = c
    d['BLOCK_SIZE_M'] = 16
    one_kernel[(1,)](x, **c)
go(0)
""",
    ),
    "alias-in": (
        "reaches unknown",
        """
def go(x):
    c = {}
    d = c
    d['BLOCK_SIZE_M'] = get_default_config(1,2)['BLOCK_SIZE_M']
    one_kernel[(1,)](x, **c)
go(0)
""",
    ),
    "mutate-param": (
        "reaches unknown",
        """
def put(d, v):
    d['BLOCK_SIZE_M'] = v
def go(x):
    c = {}
    put(c, get_default_config(1,2)['BLOCK_SIZE_M'])
    one_kernel[(1,)](x, **c)
go(0)
""",
    ),
    "update-param": (
        "reaches unknown",
        """
def put(d, v):
    d.update(v)
def go(x):
    c = {}
    put(c, get_default_config(1,2))
    one_kernel[(1,)](x, **c)
go(0)
""",
    ),
    "getattr-self": (
        "reaches unknown",
        """
import os
class A:
    def run(self):
        getattr(self, 'do_' + os.environ['F'])(0)
    def do_x(self, x):
        one_kernel[(1,)](x, **get_default_config(1,2))
A().run()
""",
    ),
    "globals-call": (
        "reaches unknown",
        """
import os
def go(x):
    one_kernel[(1,)](x, **get_default_config(1,2))
globals()[os.environ['F']](0)
""",
    ),
    "shadow": (
        "stopped",
        """
def go(x):
    get_default_config = lambda a, b: {'BLOCK_SIZE_M': 1}
    one_kernel[(1,)](x, **get_default_config(1,2))
go(0)
""",
    ),
    "star-args": (
        "reaches unknown",
        """
def f(x, c):
    one_kernel[(1,)](x, **c)
def go(*a):
    f(*a)
go(0, get_default_config(1,2))
""",
    ),
    "kwargs": (
        "reaches",
        """
def f(x, **kw):
    one_kernel[(1,)](x, **kw)
def go(x):
    f(x, **get_default_config(1,2))
go(0)
""",
    ),
    "wraps": (
        "reaches unknown",
        """
import functools
def deco(f):
    @functools.wraps(f)
    def w(*a, **k):
        return f(*a, **k)
    return w
@deco
def f(x, c):
    one_kernel[(1,)](x, **c)
def go(x):
    f(x, get_default_config(1,2))
go(0)
""",
    ),
    "thread": (
        "reaches unknown",
        """
import threading
def f(c):
    one_kernel[(1,)](0, **c)
def go(x):
    threading.Thread(target=f, args=(get_default_config(1,2),)).start()
go(0)
""",
    ),
    "yield": (
        "reaches",
        """
def gen():
    yield get_default_config(1,2)
def go(x):
    for c in gen():
        one_kernel[(1,)](x, **c)
go(0)
""",
    ),
    "try-raise": (
        "reaches",
        """
def go(x):
    try:
        raise ValueError
    except ValueError:
        one_kernel[(1,)](x, **get_default_config(1,2))
go(0)
""",
    ),
    "while-break": (
        "reaches",
        """
def go(x):
    c = None
    while True:
        if x:
            c = get_default_config(1,2)
            break
    one_kernel[(1,)](x, **c)
go(0)
""",
    ),
    "if-false": (
        "stopped",
        """
FLAG = False
def go(x):
    if FLAG:
        one_kernel[(1,)](x, **get_default_config(1,2))
go(0)
""",
    ),
    "flag-changed": (
        "reaches",
        """
FLAG = False
def on():
    global FLAG
    FLAG = True
def go(x):
    if FLAG:
        one_kernel[(1,)](x, **get_default_config(1,2))
on(); go(0)
""",
    ),
    "flag-env": (
        "reaches unknown",
        """
import os
FLAG = os.environ.get('A') == '1'
def go(x):
    if FLAG:
        one_kernel[(1,)](x, **get_default_config(1,2))
go(0)
""",
    ),
    "flag-loop": (
        "reaches",
        """
FLAG = False
for i in range(3):
    if FLAG:
        one_kernel[(1,)](0, **get_default_config(1,2))
    FLAG = True
""",
    ),
    "flag-local-loop": (
        "reaches",
        """
def go(x):
    first = True
    for i in range(3):
        if not first:
            one_kernel[(1,)](0, **get_default_config(1,2))
        first = False
go(0)
""",
    ),
    "flag-loop-nested": (
        "reaches",
        """
def go(x):
    on = False
    for i in range(3):
        for j in range(2):
            if on:
                one_kernel[(1,)](0, **get_default_config(1,2))
        on = True
go(0)
""",
    ),
    "flag-closure": (
        "reaches unknown",
        """
def go(x):
    on = False
    def f():
        if on:
            one_kernel[(1,)](0, **get_default_config(1,2))
    on = True
    f()
go(0)
""",
    ),
    "flag-del-default": (
        "reaches",
        """
def go(x, on=False):
    if on:
        one_kernel[(1,)](0, **get_default_config(1,2))
go(0, True)
""",
    ),
    "flag-try": (
        "reaches",
        """
try:
    import foo
    ON = True
except ImportError:
    ON = False
def go(x):
    if ON:
        one_kernel[(1,)](0, **get_default_config(1,2))
go(0)
""",
    ),
    "flag-class": (
        "reaches",
        """
class A:
    on = False
    def go(self, x):
        if self.on:
            one_kernel[(1,)](0, **get_default_config(1,2))
class B(A):
    on = True
B().go(0)
""",
    ),
    "flag-aug": (
        "reaches",
        """
N = 0
N += 1
def go(x):
    if N:
        one_kernel[(1,)](0, **get_default_config(1,2))
go(0)
""",
    ),
    "flag-with": (
        "reaches unknown",
        """
import contextlib
on = False
with contextlib.suppress(Exception):
    import foo
    on = True
def go(x):
    if not on:
        one_kernel[(1,)](0, **get_default_config(1,2))
go(0)
""",
    ),
    "deadcode": (
        "stopped",
        """
def go(x):
    return
    one_kernel[(1,)](0, **get_default_config(1,2))
go(0)
""",
    ),
    "subclass": (
        "reaches unknown",
        """
class A:
    def run(self, c):
        pass
    def go(self):
        self.run(get_default_config(1,2))
class B(A):
    def run(self, c):
        one_kernel[(1,)](0, **c)
B().go()
""",
    ),
    "duck": (
        "reaches unknown",
        """
class B:
    def execute(self, c):
        one_kernel[(1,)](0, **c)
def go(o):
    o.execute(get_default_config(1,2))
go(B())
""",
    ),
    "duck2": (
        "unknown",
        """
class A:
    def execute(self, c):
        pass
class B:
    def execute(self, c):
        one_kernel[(1,)](0, **c)
def go(o):
    o.execute(get_default_config(1,2))
go(A())
""",
    ),
    "dataclass": (
        "reaches unknown",
        """
from dataclasses import dataclass
@dataclass
class P:
    c: dict
def go(p):
    one_kernel[(1,)](0, **p.c)
go(P(get_default_config(1,2)))
""",
    ),
    "property": (
        "reaches",
        """
class A:
    @property
    def c(self):
        return get_default_config(1,2)
    def go(self):
        one_kernel[(1,)](0, **self.c)
A().go()
""",
    ),
    "lru": (
        "reaches",
        """
import functools
@functools.lru_cache
def c():
    return get_default_config(1,2)
def go():
    one_kernel[(1,)](0, **c())
go()
""",
    ),
    "lambda": (
        "reaches",
        """
mk = lambda: get_default_config(1,2)
def go():
    one_kernel[(1,)](0, **mk())
go()
""",
    ),
    "tuple": (
        "reaches",
        """
def two():
    return 1, get_default_config(1,2)
def go():
    a, c = two()
    one_kernel[(1,)](0, **c)
go()
""",
    ),
    "tuple-other": (
        "stopped",
        """
def two():
    return 1, get_default_config(1,2)
def go():
    a, c = two()
    other_kernel[(1,)](0, N=a)
go()
""",
    ),
    "callback": (
        "reaches unknown",
        """
def f(c):
    one_kernel[(1,)](0, **c)
def apply(g, c):
    g(c)
def go():
    apply(f, get_default_config(1,2))
go()
""",
    ),
    "kernel-param": (
        "reaches unknown",
        """
def launch(k, c):
    k[(1,)](0, **c)
def go():
    launch(one_kernel, get_default_config(1,2))
go()
""",
    ),
    "kernel-key-unused": (
        "stopped",
        """
def go():
    c = get_default_config(1,2)
    other_kernel[(1,)](0, N=3)
go()
""",
    ),
    "only-log": (
        "stopped",
        """
import logging
log=logging.getLogger()
def go():
    c = get_default_config(1,2)
    log.info('%s', c)
go()
""",
    ),
    "await": (
        "reaches",
        """
import asyncio
async def mk():
    return get_default_config(1,2)
async def go():
    one_kernel[(1,)](0, **(await mk()))
asyncio.run(go())
""",
    ),
    "walrus": (
        "reaches",
        """
def go():
    if (c := get_default_config(1,2)):
        one_kernel[(1,)](0, **c)
go()
""",
    ),
    "comp": (
        "reaches",
        """
def go():
    cs = {m: get_default_config(m,2) for m in (1,2)}
    one_kernel[(1,)](0, **cs[1])
go()
""",
    ),
    "mutual": (
        "reaches",
        """
def a(c, n):
    if n: b(c, n-1)
    else: one_kernel[(1,)](0, **c)
def b(c, n):
    a(c, n)
a(get_default_config(1,2), 3)
""",
    ),
    "string-register": (
        "reaches",
        """
def direct_register(name, op): pass
def op(x):
    one_kernel[(1,)](x, **get_default_config(1,2))
direct_register('op', op)
""",
    ),
    "custom-op-str": (
        "reaches",
        """
import torch
def op_impl(x):
    one_kernel[(1,)](x, **get_default_config(1,2))
torch.library.impl('lib','op')(op_impl)
""",
    ),
    "exec": (
        "unknown",
        """
def go():
    c = get_default_config(1,2)
    exec('one_kernel[(1,)](0, **c)')
go()
""",
    ),
    "json": (
        "stopped unknown",
        """
import json, subprocess
def go():
    c = get_default_config(1,2)
    subprocess.run(['x', json.dumps(c)])
go()
""",
    ),
    "dict-or": (
        "reaches",
        """
def go():
    c = {'N': 1} | get_default_config(1,2)
    one_kernel[(1,)](0, **c)
go()
""",
    ),
    "dict-or-over": (
        "overridden reaches stopped",
        """
def go():
    c = get_default_config(1,2) | {'BLOCK_SIZE_M': 1}
    one_kernel[(1,)](0, **c)
go()
""",
    ),
    "maybe-over": (
        "reaches",
        """
def go(x):
    c = get_default_config(1,2)
    if x:
        c['BLOCK_SIZE_M'] = 16
    one_kernel[(1,)](0, **c)
go(0)
""",
    ),
    "loop-over": (
        "reaches",
        """
def go(xs):
    c = get_default_config(1,2)
    for x in xs:
        c['BLOCK_SIZE_M'] = 16
    one_kernel[(1,)](0, **c)
go([])
""",
    ),
    "try-over": (
        "reaches",
        """
def go(xs):
    c = get_default_config(1,2)
    try:
        xs()
        c['BLOCK_SIZE_M'] = 16
    except Exception:
        pass
    one_kernel[(1,)](0, **c)
go([])
""",
    ),
    "env-over": (
        "reaches",
        """
import os
def go():
    c = get_default_config(1,2)
    c = os.environ.get('C') or c
    one_kernel[(1,)](0, **c)
go()
""",
    ),
    "uncond-pop": (
        "stopped",
        """
def go():
    c = get_default_config(1,2)
    c.pop('BLOCK_SIZE_M')
    one_kernel[(1,)](0, **c)
go()
""",
    ),
    "call-result": (
        "stopped unknown",
        """
class K:
    def __getitem__(self, g):
        return lambda **k: None
def go():
    K()[(1,)](**get_default_config(1,2))
go()
""",
    ),
    "const-ctx": (
        "reaches",
        """
def f(c, on):
    if on:
        one_kernel[(1,)](0, **c)
f(get_default_config(1,2), False)
f(get_default_config(1,2), True)
""",
    ),
    "override-ret": (
        "reaches",
        """
class A:
    def cfg(self):
        return {}
    def go(self):
        one_kernel[(1,)](0, **self.cfg())
class B(A):
    def cfg(self):
        return get_default_config(1,2)
B().go()
""",
    ),
    "factory": (
        "reaches",
        """
def make():
    def f():
        return get_default_config(1,2)
    return f
def go():
    f = make()
    one_kernel[(1,)](0, **f())
go()
""",
    ),
    "put-then-over": (
        "stopped",
        """
def put(d, v):
    d['BLOCK_SIZE_M'] = v
def go(x):
    c = {}
    put(c, get_default_config(1,2)['BLOCK_SIZE_M'])
    c['BLOCK_SIZE_M'] = 3
    one_kernel[(1,)](x, **c)
go(0)
""",
    ),
    "put-copy": (
        "stopped",
        """
def put(d):
    d = dict(d)
    d.update(get_default_config(1,2))
    return 1
def go(x):
    c = {}
    put(c)
    one_kernel[(1,)](x, **c)
go(0)
""",
    ),
    "put-self": (
        "reaches",
        """
class A:
    def fill(self, d):
        d.update(get_default_config(1,2))
    def go(self):
        c = {}
        self.fill(c)
        one_kernel[(1,)](0, **c)
A().go()
""",
    ),
    "init-put": (
        "reaches unknown",
        """
class A:
    def __init__(self, d):
        d.update(get_default_config(1,2))
def go():
    c = {}
    A(c)
    one_kernel[(1,)](0, **c)
go()
""",
    ),
    "super": (
        "reaches",
        """
class A:
    def run(self, c):
        one_kernel[(1,)](0, **c)
class B(A):
    def go(self):
        super().run(get_default_config(1,2))
B().go()
""",
    ),
    "classmethod": (
        "reaches",
        """
class A:
    @classmethod
    def run(cls, c):
        one_kernel[(1,)](0, **c)
A.run(get_default_config(1,2))
""",
    ),
    "static": (
        "reaches",
        """
class A:
    @staticmethod
    def run(c):
        one_kernel[(1,)](0, **c)
A().run(get_default_config(1,2))
""",
    ),
    "ext-base": (
        "reaches",
        """
import torch
class A(torch.nn.Module):
    def forward(self, x):
        one_kernel[(1,)](x, **get_default_config(1,2))
A()(0)
""",
    ),
    "call-dunder": (
        "reaches unknown",
        """
class A:
    def __call__(self, c):
        one_kernel[(1,)](0, **c)
A()(get_default_config(1,2))
""",
    ),
    "getitem-dunder": (
        "reaches unknown",
        """
class A:
    def __getitem__(self, k):
        return get_default_config(1,2)
def go():
    one_kernel[(1,)](0, **A()['x'])
go()
""",
    ),
    "iter-dunder": (
        "reaches unknown",
        """
class A:
    def __iter__(self):
        yield get_default_config(1,2)
def go():
    for c in A():
        one_kernel[(1,)](0, **c)
go()
""",
    ),
    "ctx-dunder": (
        "reaches unknown",
        """
class A:
    def __enter__(self):
        return get_default_config(1,2)
    def __exit__(self, *a): pass
def go():
    with A() as c:
        one_kernel[(1,)](0, **c)
go()
""",
    ),
    "ctxmgr": (
        "reaches unknown",
        """
import contextlib
@contextlib.contextmanager
def cm():
    yield get_default_config(1,2)
def go():
    with cm() as c:
        one_kernel[(1,)](0, **c)
go()
""",
    ),
    "op-dunder": (
        "reaches unknown",
        """
class A:
    def __add__(self, o):
        return get_default_config(1,2)
def go():
    one_kernel[(1,)](0, **(A() + 1))
go()
""",
    ),
    "next": (
        "reaches unknown",
        """
def gen():
    yield get_default_config(1,2)
def go():
    c = next(gen())
    one_kernel[(1,)](0, **c)
go()
""",
    ),
    "reduce": (
        "reaches unknown",
        """
import functools
def go():
    c = functools.reduce(lambda a, b: get_default_config(1,2), [1,2])
    one_kernel[(1,)](0, **c)
go()
""",
    ),
    "map": (
        "reaches unknown",
        """
def mk(i):
    return get_default_config(i,2)
def go():
    for c in map(mk, [1,2]):
        one_kernel[(1,)](0, **c)
go()
""",
    ),
    "executor": (
        "reaches unknown",
        """
from concurrent.futures import ThreadPoolExecutor
def mk(i):
    return get_default_config(i,2)
def go(ex):
    c = ex.submit(mk, 1).result()
    one_kernel[(1,)](0, **c)
go(ThreadPoolExecutor())
""",
    ),
    "sorted-key": (
        "reaches unknown",
        """
def go():
    c = min([get_default_config(1,2)], key=len)
    one_kernel[(1,)](0, **c)
go()
""",
    ),
    "or-default": (
        "reaches",
        """
def go(c=None):
    c = c or get_default_config(1,2)
    one_kernel[(1,)](0, **c)
go()
""",
    ),
    "default-param": (
        "reaches",
        """
D = get_default_config(1,2)
def go(c=D):
    one_kernel[(1,)](0, **c)
go()
""",
    ),
    "class-attr": (
        "reaches",
        """
class A:
    C = get_default_config(1,2)
def go():
    one_kernel[(1,)](0, **A.C)
go()
""",
    ),
    "json-roundtrip": (
        "reaches unknown",
        """
import json
def go():
    c = json.loads(json.dumps(get_default_config(1,2)))
    one_kernel[(1,)](0, **c)
go()
""",
    ),
    "pickle": (
        "reaches unknown",
        """
import pickle
def go():
    pickle.dump(get_default_config(1,2), open('f','wb'))
def rd():
    one_kernel[(1,)](0, **pickle.load(open('f','rb')))
go(); rd()
""",
    ),
    "environ": (
        "reaches unknown",
        """
import os
def go():
    os.environ['BM'] = str(get_default_config(1,2)['BLOCK_SIZE_M'])
def rd():
    one_kernel[(1,)](0, BLOCK_SIZE_M=int(os.environ['BM']))
go(); rd()
""",
    ),
    "queue": (
        "reaches unknown",
        """
import queue
q = queue.Queue()
def go():
    q.put(get_default_config(1,2))
def rd():
    one_kernel[(1,)](0, **q.get())
go(); rd()
""",
    ),
    "weird-holder": (
        "reaches unknown",
        """
def holder(): return holder
def go():
    holder().x = get_default_config(1,2)
def rd():
    one_kernel[(1,)](0, **holder.x)
go(); rd()
""",
    ),
    "fstring-exec": (
        "stopped unknown",
        """
def go():
    m = get_default_config(1,2)['BLOCK_SIZE_M']
    src = f'k({m})'
    compile(src, 'f', 'exec')
go()
""",
    ),
    "fstring-ext": (
        "reaches unknown",
        """
import deviceblas
def go():
    m = get_default_config(1,2)['BLOCK_SIZE_M']
    deviceblas.jit(f'k<{m}>')
go()
""",
    ),
    "format-ext": (
        "reaches unknown",
        """
import deviceblas
def go():
    m = get_default_config(1,2)['BLOCK_SIZE_M']
    deviceblas.jit('k<{}>'.format(m))
go()
""",
    ),
    "assert-only": (
        "stopped",
        """
def go():
    c = get_default_config(1,2)
    assert c['BLOCK_SIZE_M'] == 64
go()
""",
    ),
    "control": (
        "reaches",
        """
def go(x):
    c = get_default_config(1,2)
    if c['BLOCK_SIZE_M'] > 32:
        one_kernel[(1,)](0, BLOCK_SIZE_M=8)
go(0)
""",
    ),
    "control-ret": (
        "reaches",
        """
def go(x):
    if get_default_config(1,2)['BLOCK_SIZE_M'] > 32:
        return 1
    one_kernel[(1,)](0, BLOCK_SIZE_M=8)
go(0)
""",
    ),
    "dict-len": (
        "reaches stopped",
        """
def go(x):
    other_kernel[(1,)](0, N=len(get_default_config(1,2)))
go(0)
""",
    ),
    "two-defs": (
        "reaches",
        """
import os
if os.environ.get('A'):
    def f(c):
        one_kernel[(1,)](0, **c)
else:
    def f(c):
        pass
f(get_default_config(1,2))
""",
    ),
    "redef": (
        "stopped",
        """
def f(c):
    one_kernel[(1,)](0, **c)
def f(c):
    pass
f(get_default_config(1,2))
""",
    ),
    "kernel-alias": (
        "reaches",
        """
k = one_kernel
def go():
    k[(1,)](0, **get_default_config(1,2))
go()
""",
    ),
    "kernel-run": (
        "reaches unknown",
        """
def go():
    one_kernel.run(0, grid=(1,), **get_default_config(1,2))
go()
""",
    ),
    "kernel-warmup": (
        "reaches unknown",
        """
def go():
    b = one_kernel[(1,)]
    b(0, **get_default_config(1,2))
go()
""",
    ),
    "setdefault": (
        "reaches",
        """
S={}
def go():
    c = S.setdefault('k', get_default_config(1,2))
    one_kernel[(1,)](0, **c)
go()
""",
    ),
    "global-dict": (
        "reaches",
        """
S={}
def go():
    S['k'] = get_default_config(1,2)
def rd():
    one_kernel[(1,)](0, **S['k'])
go(); rd()
""",
    ),
    "type-checking": (
        "reaches stopped",
        """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    one_kernel[(1,)](0, **get_default_config(1,2))
""",
    ),
    "main-guard": (
        "reaches stopped",
        """
if __name__ == '__main__':
    one_kernel[(1,)](0, **get_default_config(1,2))
""",
    ),
}

# name: (the verdicts that are right, every file; `{KERNELS}` stands for the kernels and the table).
ACROSS = {
    "star": (
        "reaches",
        {
            "__init__": """
from vllm import use
""",
            "cfg": """
{KERNELS}
""",
            "use": """
from vllm.cfg import *
def run(x):
    one_kernel[(1,)](x, **get_default_config(1,2))
run(0)
""",
        },
    ),
    "dyn-import": (
        "reaches unknown",
        {
            "__init__": """
import importlib, os
importlib.import_module(os.environ['X'])
""",
            "use": """
{KERNELS}
def go(x):
    one_kernel[(1,)](x, **get_default_config(1,2))
go(0)
""",
        },
    ),
    "dyn-import-concat": (
        "reaches unknown",
        {
            "__init__": """
import importlib, os
importlib.import_module('vllm.' + os.environ['X'])
""",
            "use": """
{KERNELS}
def go(x):
    one_kernel[(1,)](x, **get_default_config(1,2))
go(0)
""",
        },
    ),
    "dyn-import-f": (
        "reaches unknown",
        {
            "__init__": """
import importlib, os
importlib.import_module(f"vllm.{os.environ['X']}")
""",
            "use": """
{KERNELS}
def go(x):
    one_kernel[(1,)](x, **get_default_config(1,2))
go(0)
""",
        },
    ),
    "pkgutil": (
        "reaches unknown",
        {
            "__init__": """
import pkgutil, importlib
for m in pkgutil.iter_modules(__path__):
    importlib.import_module('.' + m.name, __name__)
""",
            "use": """
{KERNELS}
def go(x):
    one_kernel[(1,)](x, **get_default_config(1,2))
go(0)
""",
        },
    ),
    "getattr-mod": (
        "reaches unknown",
        {
            "__init__": """
import os
from vllm import use
getattr(use, os.environ['F'])(0)
""",
            "use": """
{KERNELS}
def go(x):
    one_kernel[(1,)](x, **get_default_config(1,2))
""",
        },
    ),
    "module-getattr": (
        "reaches stopped unknown",
        {
            "__init__": """
from vllm import use
use.anything
""",
            "use": """
{KERNELS}
def go(x):
    one_kernel[(1,)](x, **get_default_config(1,2))
def __getattr__(name):
    return globals()[name]
""",
        },
    ),
    "flag-monkey": (
        "reaches unknown",
        {
            "__init__": """
from vllm import use
use.FLAG = True
use.go(0)
""",
            "use": """
{KERNELS}
FLAG = False
def go(x):
    if FLAG:
        one_kernel[(1,)](x, **get_default_config(1,2))
""",
        },
    ),
    "flag-setattr": (
        "reaches unknown",
        {
            "__init__": """
from vllm import use
setattr(use, 'FLAG', True)
use.go(0)
""",
            "use": """
{KERNELS}
FLAG = False
def go(x):
    if FLAG:
        one_kernel[(1,)](x, **get_default_config(1,2))
""",
        },
    ),
    "cycle": (
        "reaches",
        {
            "__init__": """
from vllm import use
""",
            "use": """
from vllm import other
{KERNELS}
def go():
    other.launch(get_default_config(1,2))
go()
""",
            "other": """
from vllm import use
def launch(c):
    use.one_kernel[(1,)](0, **c)
""",
        },
    ),
    "other-file-global": (
        "reaches unknown",
        {
            "__init__": """
from vllm import use, other
""",
            "use": """
{KERNELS}
import vllm.other as o
def go():
    o.G = get_default_config(1,2)
go()
""",
            "other": """
G=None
from vllm.use import one_kernel
def rd():
    one_kernel[(1,)](0, **G)
rd()
""",
        },
    ),
    "noimport-main": (
        "reaches unknown",
        {
            "__init__": """
""",
            "use": """
{KERNELS}
def go():
    one_kernel[(1,)](0, **get_default_config(1,2))
if __name__ == '__main__':
    go()
""",
        },
    ),
    "entrypoint-toml": (
        "stopped unknown",
        {
            "__init__": """
""",
            "use": """
{KERNELS}
def main():
    one_kernel[(1,)](0, **get_default_config(1,2))
""",
        },
    ),
}
