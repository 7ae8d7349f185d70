// Floors: what the machine itself takes, which no library can beat.
// usage: limits pp|ppq|put|putbw|rate|memcpy|vm|allreduce|wake
// Prints one JSON object a line: {"k":what,"size":bytes,"n":processes,"v":value,"u":unit,"pp":hand-over in ns}.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined __x86_64__
#include <immintrin.h>
#define RELAX() _mm_pause()
#define FENCE_STREAM() _mm_sfence()
#else
#define RELAX()
#define FENCE_STREAM() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif

typedef _Atomic uint64_t au64;
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}
static void pin(int c) {
  cpu_set_t s;
  CPU_ZERO(&s);
  CPU_SET(c, &s);
  if (sched_setaffinity(0, sizeof s, &s)) perror("pin");
}
static void die(const char *m) { perror(m); exit(1); }
static double probe(void);
static void out(const char *k, size_t size, int n, double v, const char *u) {
  static double last = -1;
  double pp = probe();
  printf("{\"k\":\"%s\",\"size\":%zu,\"n\":%d,\"v\":%.6g,\"u\":\"%s\",\"pp\":%.1f}\n", k, size, n, v, u, pp > last ? pp : last);
  last = pp;
  fflush(stdout);
}
// memory: kind 0 = shared anonymous (4 KiB pages), 1 = private anonymous 4 KiB, 2 = private with THP
static void *mem(size_t n, int kind) {
  size_t al = 2u << 20, tot = n + al;
  int fl = MAP_ANONYMOUS | (kind == 0 ? MAP_SHARED : MAP_PRIVATE);
  char *p = mmap(0, tot, PROT_READ | PROT_WRITE, fl, -1, 0);
  if (p == MAP_FAILED) die("mmap");
  p = (char *)(((uintptr_t)p + al - 1) & ~(al - 1));
  if (kind == 2) madvise(p, n, MADV_HUGEPAGE);
  memset(p, 1, n);
  return p;
}
static void *shm(size_t n) { return mem(n, 0); }

// ---- copy kernels: one cache line a step, whatever the width of the machine's registers
typedef uint64_t line_t __attribute__((vector_size(64), aligned(1), may_alias));
typedef float floats_t __attribute__((vector_size(64), aligned(1), may_alias));
// A store past the caches; d is aligned to 64 bytes.
static inline void stream(void *d, line_t x) {
#if defined __AVX512F__
  _mm512_stream_si512(d, (__m512i)x);
#elif defined __x86_64__
  __m128i part[4];
  memcpy(part, &x, 64);
  for (int i = 0; i < 4; i++) _mm_stream_si128((__m128i *)d + i, part[i]);
#else
  *(line_t *)d = x;
#endif
}
typedef void (*copy_fn)(char *, const char *, size_t);
static void c_libc(char *d, const char *s, size_t n) { memcpy(d, s, n); }
static void c_nt(char *d, const char *s, size_t n) {
  size_t i = 0;
  for (; i + 64 <= n; i += 64) stream(d + i, *(const line_t *)(s + i));
  FENCE_STREAM();
  if (i < n) memcpy(d + i, s + i, n - i);
}
static volatile uint64_t sink;
static void k_read(char *d, const char *s, size_t n) {  // reads s only
  line_t a = {0}, b = a, c = a, e = a;
  for (size_t i = 0; i + 256 <= n; i += 256) {
    a |= *(const line_t *)(s + i);
    b |= *(const line_t *)(s + i + 64);
    c |= *(const line_t *)(s + i + 128);
    e |= *(const line_t *)(s + i + 192);
  }
  a |= b | c | e;
  sink += a[0] | a[1] | a[2] | a[3] | a[4] | a[5] | a[6] | a[7];
}
static void k_writent(char *d, const char *s, size_t n) {  // writes d only
  line_t a = {n};
  for (size_t i = 0; i + 64 <= n; i += 64) stream(d + i, a);
  FENCE_STREAM();
}

// ---- ping-pong ----------------------------------------------------------
#include "where.h"
// two forked children on the two cores: median ns of a one-line hand-over
static double probe(void) {
  where_mem = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  volatile double *res = (volatile double *)(where_mem + 64);
  where_seq = 0;
  pid_t c[2];
  for (int r = 0; r < 2; r++)
    if (!(c[r] = fork())) { pin(r); double v = where_probe(r); if (!r) *res = v; _exit(0); }
  for (int r = 0; r < 2; r++) waitpid(c[r], 0, 0);
  double v = *res;
  munmap((void *)where_mem, 4096);
  return v;
}
struct flags {
  au64 f0;
  char p0[248];
  au64 f1;
  char p1[248];
};
static void pp(void) {
  struct flags *f = shm(4096);
  for (int variant = 0; variant < 4; variant++) {
    atomic_store(&f->f0, 0);
    atomic_store(&f->f1, 0);
    int one = variant & 1, pause = variant & 2;
    uint64_t N = 1000000;
    au64 *a = &f->f0, *b = one ? &f->f0 : &f->f1;
    pid_t c = fork();
    if (!c) {
      pin(1);
      for (uint64_t i = 1; i <= N; i++) {
        uint64_t want = one ? 2 * i - 1 : i;
        while (atomic_load_explicit(a, memory_order_acquire) != want)
          if (pause) RELAX();
        atomic_store_explicit(b, one ? 2 * i : i, memory_order_release);
      }
      _exit(0);
    }
    pin(0);
    usleep(1000);
    double t = 0;
    for (uint64_t i = 1; i <= N; i++) {
      if (i == 1000) t = now();
      atomic_store_explicit(a, one ? 2 * i - 1 : i, memory_order_release);
      uint64_t want = one ? 2 * i : i;
      while (atomic_load_explicit(b, memory_order_acquire) != want)
        if (pause) RELAX();
    }
    t = now() - t;
    waitpid(c, 0, 0);
    char k[64];
    snprintf(k, sizeof k, "pingpong/%s%s", one ? "one-line" : "two-lines", pause ? "/pause" : "");
    out(k, 8, 2, t / (N - 1000) / 2 * 1e9, "ns");
  }
}

static const size_t P_SIZES[] = {8, 64, 1024, 4096, 8192, 65536, 131072, 1 << 20, 16 << 20, 0};

// put + flag ping-pong: the sender copies the payload into memory shared with the peer, then
// sets a flag in the peer's memory. recv: 0 = the receiver never touches the payload (one-sided put),
// 1 = it reads the payload in place, 2 = it copies it out to private memory.
static void put_one(const char *name, copy_fn cp, int recv, size_t sz) {
  char *r0 = shm(sz + 4096), *r1 = shm(sz + 4096);  // inbox of 0 and of 1
  struct flags *f = shm(4096);
  memset((void *)f, 0, 4096);
  double per = 0.3e-6 + sz / 8e9;
  uint64_t N = 0.08 / per / 2;
  if (N < 20) N = 20;
  if (N > 200000) N = 200000;
  uint64_t W = N / 10 + 2;
  pid_t c = fork();
  int me = c ? 0 : 1;
  pin(me);
  char *src = mem(sz + 4096, 1), *dst = mem(sz + 4096, 1);
  char *theirs = me ? r0 : r1, *mine = me ? r1 : r0;
  au64 *tf = me ? &f->f0 : &f->f1, *mf = me ? &f->f1 : &f->f0;
  double t = 0;
  for (uint64_t i = 1; i <= N + W; i++) {
    if (i == W + 1) t = now();
    if (me == 0) {
      cp(theirs, src, sz);
      atomic_store_explicit(tf, i, memory_order_release);
    }
    while (atomic_load_explicit(mf, memory_order_acquire) != i) {
    }
    if (recv == 1) k_read(0, mine, sz);
    if (recv == 2) memcpy(dst, mine, sz);
    if (me == 1) {
      cp(theirs, src, sz);
      atomic_store_explicit(tf, i, memory_order_release);
    }
  }
  t = now() - t;
  if (me) _exit(0);
  waitpid(c, 0, 0);
  char k[64];
  snprintf(k, sizeof k, "put/%s/%s", name, recv == 0 ? "untouched" : recv == 1 ? "read" : "copyout");
  out(k, sz, 2, t / N / 2 * 1e6, "us");
  munmap(r0, sz + 4096);
  munmap(r1, sz + 4096);
}
static void put(void) {
  // payload and flag in one line: 8 B inline
  for (int s = 0; P_SIZES[s]; s++) {
    size_t z = P_SIZES[s];
    put_one("libc", c_libc, 0, z);
    put_one("libc", c_libc, 1, z);
    put_one("libc", c_libc, 2, z);
    if (z >= 65536) {
      put_one("nt", c_nt, 0, z);
      put_one("nt", c_nt, 2, z);
    }
  }
}

// streaming: a window of 64 messages of sz, receiver acks the window.
// recv 0: one-sided (only the sender copies), 1: receiver reads in place, 2: copies out of a ring of 64 slots
static void putbw(void) {
  static const size_t S[] = {64, 1024, 8192, 65536, 1 << 20, 16 << 20, 0};
  for (int s = 0; S[s]; s++)
    for (int recv = 0; recv < 3; recv++)
      for (int same = 0; same < 2; same++) {  // same: every message of the window into one buffer (as OSU does)
        size_t z = S[s];
        int win = 64;
        size_t slots = same ? 1 : (z >= (1 << 20) ? 8 : 64);
        if (recv == 2 && same) continue;  // a ring needs slots
        struct ring { au64 head; char p0[248]; au64 tail; char p1[248]; } *r = shm(4096);
        memset((void *)r, 0, 4096);
        char *box = shm(z * slots);
        uint64_t N = 0.08 / (30e-9 + z / 8e9);
        if (N < 64) N = 64;
        if (N > 4000000) N = 4000000;
        N = (N + win - 1) / win * win;
        pid_t c = fork();
        if (!c) {
          pin(1);
          char *dst = mem(z, 1);
          uint64_t t = 0;
          while (t < N) {
            uint64_t h;
            while ((h = atomic_load_explicit(&r->head, memory_order_acquire)) == t) {
            }
            for (uint64_t i = t; recv && i < h; i++) {
              char *slot = box + z * (i % slots);
              if (recv == 2) memcpy(dst, slot, z);
              else if (z < 256) sink += *slot;
              else k_read(0, slot, z);
            }
            t = h;
            atomic_store_explicit(&r->tail, t, memory_order_release);
          }
          _exit(0);
        }
        pin(0);
        char *src = mem(z, 1);
        usleep(2000);
        double t = now();
        uint64_t tail = 0;
        uint64_t lim = slots < (uint64_t)win ? (recv ? slots : (uint64_t)win) : (uint64_t)win;
        if (same) lim = win;
        for (uint64_t i = 0; i < N; i++) {
          while (i - tail >= lim) tail = atomic_load_explicit(&r->tail, memory_order_acquire);
          memcpy(box + z * (i % slots), src, z);
          atomic_store_explicit(&r->head, i + 1, memory_order_release);
        }
        while (atomic_load_explicit(&r->tail, memory_order_acquire) != N) {
        }
        t = now() - t;
        waitpid(c, 0, 0);
        char k[64];
        snprintf(k, sizeof k, "putbw/%s/%s", recv == 0 ? "untouched" : recv == 1 ? "read" : "copyout", same ? "one-buffer" : "ring");
        out(k, z, 2, (double)N * z / t / 1e9, "GB/s");
        munmap(box, z * slots);
      }
}

// message rate: 64-byte cells (56 payload + 8 sequence) in a single-producer ring of 1024 cells
static void rate(void) {
  enum { SL = 1024 };
  struct cell { au64 seq; char d[56]; };
#if defined __AVX512F__
  int first = 0;
#else
  int first = 1;  // no single store of a whole line
#endif
  for (int v = first; v < 4; v++) {
    // 0: seq in the cell, tail published every 64; 1: head published per message; 2: head per 16; 3: head per 64
    struct ring { au64 head; char p0[248]; au64 tail; char p1[248]; struct cell c[SL]; } *r = shm(sizeof(struct ring));
    memset((void *)r, 0, sizeof *r);
    uint64_t N = 8000000, batch = v == 2 ? 16 : v == 3 ? 64 : 1;
    pid_t c = fork();
    if (!c) {
      pin(1);
      uint64_t t = 0, s = 0;
      while (t < N) {
        if (v == 0) {
          struct cell *e = &r->c[t % SL];
          while (atomic_load_explicit(&e->seq, memory_order_acquire) != t + 1) {
          }
          s += *(volatile uint64_t *)e->d;
          t++;
          if (t % 64 == 0) atomic_store_explicit(&r->tail, t, memory_order_release);
        } else {
          uint64_t h = atomic_load_explicit(&r->head, memory_order_acquire);
          if (h == t) continue;
          for (; t < h; t++) s += *(volatile uint64_t *)r->c[t % SL].d;
          atomic_store_explicit(&r->tail, t, memory_order_release);
        }
      }
      atomic_store_explicit(&r->tail, N, memory_order_release);
      _exit(s == 7);
    }
    pin(0);
    usleep(2000);
    double t = now();
    uint64_t tail = 0;
    line_t x = {5, 5, 5, 5, 5, 5, 5, 5};
    for (uint64_t i = 0; i < N; i++) {
      while (i - tail >= SL) tail = atomic_load_explicit(&r->tail, memory_order_acquire);
      struct cell *e = &r->c[i % SL];
      if (v == 0) {
        // one 64-byte store carrying the sequence number
        x[0] = i + 1;
        *(volatile line_t *)e = x;
      } else {
        *(volatile line_t *)e = x;
        if ((i + 1) % batch == 0) atomic_store_explicit(&r->head, i + 1, memory_order_release);
      }
    }
    atomic_store_explicit(&r->head, N, memory_order_release);
    while (atomic_load_explicit(&r->tail, memory_order_acquire) != N) {
    }
    t = now() - t;
    waitpid(c, 0, 0);
    static const char *nm[] = {"rate/seq-in-cell", "rate/head-per-1", "rate/head-per-16", "rate/head-per-64"};
    out(nm[v], 64, 2, N / t / 1e6, "Mmsg/s");
  }
}

// run kernel in np processes at once, pinned; value = sum of size*iters / time (payload bytes)
struct sync { au64 ready, go, done; double t[8]; };
static void kern(const char *k, copy_fn fn, size_t z, int np, int kind) {
  struct sync *s = shm(4096);
  memset((void *)s, 0, sizeof *s);
  uint64_t it = 0.05 / (z / 10e9 + 20e-9);
  if (it < 3) it = 3;
  pid_t ch[8];
  for (int p = 0; p < np; p++) {
    ch[p] = fork();
    if (!ch[p]) {
      pin(p);
      char *a = mem(z, kind), *b = mem(z, kind);
      // Not zeros: some processors store those past the caches at twice the speed of anything else.
      for (size_t i = 0; i < z; i++) a[i] = b[i] = 1 + (i * 31 + i / 251) % 255;
      fn(a, b, z);
      atomic_fetch_add(&s->ready, 1);
      while (atomic_load(&s->ready) < (uint64_t)np) {
      }
      double t = now();
      for (uint64_t i = 0; i < it; i++) {
        fn(a, b, z);
        __asm__ volatile("" ::: "memory");
      }
      s->t[p] = now() - t;
      _exit(0);
    }
  }
  for (int p = 0; p < np; p++) waitpid(ch[p], 0, 0);
  double bw = 0;
  for (int p = 0; p < np; p++) bw += z * (double)it / s->t[p];
  out(k, z, np, bw / 1e9, "GB/s");
}
static const size_t M_SIZES[] = {4096, 65536, 1 << 20, 16 << 20, 64 << 20, 0};
static void memcpy_(void) {
  struct { const char *n; copy_fn f; int kind; } K[] = {
      {"memcpy/libc", c_libc, 1}, {"memcpy/libc/shm", c_libc, 0}, {"memcpy/nt", c_nt, 1},
      {"read", k_read, 1},        {"write/nt", k_writent, 1}};
  for (unsigned k = 0; k < sizeof K / sizeof *K; k++)
    for (int np = 1; np <= 2; np++)
      for (int i = 0; M_SIZES[i]; i++) kern(K[k].n, K[k].f, M_SIZES[i], np, K[k].kind);
}

// process_vm_readv / writev from a peer that only sleeps
static void vm(void) {
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  size_t max = 64 << 20;
  for (int np = 1; np <= 2; np++)
    for (int wr = 0; wr < 2; wr++) {
      struct sync *s = shm(4096);
      static const size_t S[] = {64, 4096, 16384, 65536, 262144, 1 << 20, 16 << 20, 64 << 20, 0};
      char *a = mem(max, 1), *b = mem(max, 1);  // inherited: same addresses in both children
      pid_t pids[2];
      au64 *pp_ = (au64 *)((char *)s + 2048);
      memset((void *)s, 0, 4096);
      for (int p = 0; p < 2; p++) {
        pids[p] = fork();
        if (!pids[p]) {
          prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
          pin(p);
          memset(a, p, max);
          memset(b, p, max);
          atomic_store(&pp_[p], getpid());
          while (!atomic_load(&pp_[1 - p])) sched_yield();
          pid_t peer = atomic_load(&pp_[1 - p]);
          for (int i = 0; S[i]; i++) {
            size_t z = S[i];
            uint64_t it = 0.05 / (1e-6 + z / 5e9);
            if (it < 3) it = 3;
            // barrier
            uint64_t g = atomic_fetch_add(&s->ready, 1) + 1;
            uint64_t tgt = (uint64_t)(i + 1) * 2;
            (void)g;
            while (atomic_load(&s->ready) < tgt) sched_yield();
            if (p < np) {
              struct iovec l = {a, z}, r = {b, z};
              double t = now();
              for (uint64_t j = 0; j < it; j++) {
                ssize_t k = wr ? syscall(SYS_process_vm_writev, peer, &l, 1UL, &r, 1UL, 0UL) : syscall(SYS_process_vm_readv, peer, &l, 1UL, &r, 1UL, 0UL);
                if (k != (ssize_t)z) die("vm");
              }
              s->t[p] = (now() - t) / it;
            }
            atomic_fetch_add(&s->done, 1);
            while (atomic_load(&s->done) < tgt) usleep(50);
            if (p == 0) {
              double bw = z / s->t[0] + (np == 2 ? z / s->t[1] : 0);
              const char *k = wr ? "process_vm_writev" : "process_vm_readv";
              char kk[64];
              out(k, z, np, bw / 1e9, "GB/s");
              snprintf(kk, sizeof kk, "%s/time", k);
              out(kk, z, np, s->t[0] * 1e6, "us");
            }
          }
          _exit(0);
        }
      }
      for (int p = 0; p < 2; p++) waitpid(pids[p], 0, 0);
      munmap(a, max);
      munmap(b, max);
    }
}

// Ideal allreduce of 2 ranks whose user buffers are mapped by both: each reduces its half and stores it to both
// results. Two flag barriers a call. v: 0 plain stores, 1 non-temporal, 2 in place (a += b, result to both), 3 in place + nt
static void ar_half(float *o0, float *o1, const float *a, const float *b, size_t n, int nt) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    floats_t x = *(const floats_t *)(a + i) + *(const floats_t *)(b + i);
    if (nt) stream(o0 + i, (line_t)x), stream(o1 + i, (line_t)x);
    else *(floats_t *)(o0 + i) = x, *(floats_t *)(o1 + i) = x;
  }
  for (; i < n; i++) o0[i] = o1[i] = a[i] + b[i];
  if (nt) FENCE_STREAM();
}
static void allreduce2(void) {
  static const size_t S[] = {8, 1024, 8192, 65536, 1 << 20, 16 << 20, 64 << 20, 0};
  static const char *nm[] = {"ideal-allreduce", "ideal-allreduce/nt", "ideal-allreduce/in-place", "ideal-allreduce/in-place/nt"};
  size_t max = 64 << 20;
  char *in0 = shm(max), *in1 = shm(max), *o0 = shm(max), *o1 = shm(max);
  struct flags *f = shm(4096);
  for (int v = 0; v < 4; v++)
    for (int s = 0; S[s]; s++) {
      size_t z = S[s], n = z / 4, h = n / 2;
      memset((void *)f, 0, 4096);
      uint64_t N = 0.05 / (0.3e-6 + z / 6e9);
      if (N < 3) N = 3;
      pid_t c = fork();
      int me = c ? 0 : 1;
      pin(me);
      au64 *mine = me ? &f->f1 : &f->f0, *other = me ? &f->f0 : &f->f1;
      float *a = (float *)in0, *b = (float *)in1, *p = (float *)(v >= 2 ? in0 : o0), *q = (float *)(v >= 2 ? in1 : o1);
      size_t off = me ? h : 0, cnt = me ? n - h : h;
      double t = 0;
      uint64_t e = 0, W = N / 10 + 1;
      for (uint64_t i = 0; i < N + W; i++) {
        if (i == W) t = now();
        e++;
        atomic_store_explicit(mine, e, memory_order_release);
        while (atomic_load_explicit(other, memory_order_acquire) < e) {}
        if (z <= 1024) ar_half((float *)(me ? q : p), (float *)(me ? q : p), a, b, n, 0);  // each reads both whole inputs
        else ar_half(p + off, q + off, a + off, b + off, cnt, v & 1);
        e++;
        atomic_store_explicit(mine, e, memory_order_release);
        while (atomic_load_explicit(other, memory_order_acquire) < e) {}
      }
      t = now() - t;
      if (me) _exit(0);
      waitpid(c, 0, 0);
      out(nm[v], z, 2, t / N * 1e6, "us");
    }
}
static void ppq(void) { printf("%.1f\n", probe()); }

static int fut(au64 *a, int op, uint32_t v) { return syscall(SYS_futex, a, op, v, NULL, NULL, 0); }
// Ping-pong of two processes that sleep in the kernel until the other one wakes them.
static void sleepy(const char *k, int c0, int c1, uint64_t N) {
  au64 *f = shm(4096), *g = f + 64;
  atomic_store(f, 0);
  atomic_store(g, 0);
  pid_t c = fork();
  int me = c ? 0 : 1;
  pin(me ? c1 : c0);
  au64 *mine = me ? f : g, *theirs = me ? g : f;
  double t = now();
  for (uint64_t i = 1; i <= N; i++)
    for (int half = 0; half < 2; half++)
      if (half == me) {
        atomic_store(theirs, i);
        fut(theirs, FUTEX_WAKE, 1);
      } else
        for (uint64_t v; (v = atomic_load(mine)) < i;) fut(mine, FUTEX_WAIT, v);
  t = now() - t;
  if (me) _exit(0);
  waitpid(c, 0, 0);
  out(k, 8, 2, t / N / 2 * 1e6, "us");
}
static void wake(void) {
  sleepy("wake/futex/two-cores", 0, 1, 5000);
  sleepy("wake/futex/one-core", 0, 0, 20000);
}

int main(int c, char **v) {
  for (int i = 1; i < c; i++) {
    if (!strcmp(v[i], "pp")) pp();
    else if (!strcmp(v[i], "put")) put();
    else if (!strcmp(v[i], "putbw")) putbw();
    else if (!strcmp(v[i], "rate")) rate();
    else if (!strcmp(v[i], "memcpy")) memcpy_();
    else if (!strcmp(v[i], "vm")) vm();
    else if (!strcmp(v[i], "allreduce")) allreduce2();
    else if (!strcmp(v[i], "wake")) wake();
    else if (!strcmp(v[i], "ppq")) ppq();
    else return fprintf(stderr, "unknown %s\n", v[i]), 2;
  }
  return 0;
}
