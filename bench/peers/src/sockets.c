// Floors of TCP: what two plain sockets take, each end on a core of its own.
// usage: sockets [-a NETNS,ADDRESS] [-b NETNS,ADDRESS] [-c CONGESTION] [-t SECONDS] MODE SIZE,..
// modes: lat, stream: who waits asks again and again; lat-sleep, stream-sleep: who waits sleeps in the call
// Prints one JSON object a line: {"k":mode,"size":bytes,"n":2,"v":value,"u":unit}; lat is half a round trip.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *space[2], *address[2] = {"127.0.0.1", "127.0.0.1"}, *congestion = "cubic";
static double seconds = 0.2;
static int spins;

static void die(const char *what) {
  perror(what);
  exit(1);
}
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}
// Side 0 is where rank 0 of a library would be.
static void enter(int side) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(side, &set);
  if (sched_setaffinity(0, sizeof set, &set)) die("pin");
  if (!space[side]) return;
  char path[256];
  snprintf(path, sizeof path, "/run/netns/%s", space[side]);
  int fd = open(path, O_RDONLY);
  if (fd < 0 || setns(fd, CLONE_NEWNET)) die(path);
  close(fd);
}
static void take(int fd, char *to, size_t n) {
  while (n) {
    ssize_t got = recv(fd, to, n, spins ? MSG_DONTWAIT : 0);
    if (got < 0 && errno == EAGAIN) continue;
    if (got <= 0) die("recv");
    to += got;
    n -= got;
  }
}
static void give(int fd, const char *from, size_t n) {
  while (n) {
    ssize_t went = send(fd, from, n, (spins ? MSG_DONTWAIT : 0) | MSG_NOSIGNAL);
    if (went < 0 && errno == EAGAIN) continue;
    if (went <= 0) die("send");
    from += went;
    n -= went;
  }
}
static void prepare(int fd) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, strlen(congestion))) die(congestion);
}
static char *memory(size_t n) {
  char *at = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) die("mmap");
  for (size_t i = 0; i < n; i++) at[i] = (char)(i * 7 + 1);
  return at;
}
// The end that listens and the one that connects; `port` tells the second where.
static int join(int side, int pipe_of_port[2]) {
  struct sockaddr_in at = {.sin_family = AF_INET};
  inet_pton(AF_INET, address[0], &at.sin_addr);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0) die("socket");
  prepare(fd);
  if (side == 0) {
    socklen_t len = sizeof at;
    if (bind(fd, (void *)&at, len) || listen(fd, 1) || getsockname(fd, (void *)&at, &len)) die("listen");
    if (write(pipe_of_port[1], &at.sin_port, sizeof at.sin_port) < 0) die("pipe");
    int other = accept(fd, 0, 0);
    if (other < 0) die("accept");
    close(fd);
    prepare(other);
    return other;
  }
  if (read(pipe_of_port[0], &at.sin_port, sizeof at.sin_port) != sizeof at.sin_port) die("pipe");
  if (connect(fd, (void *)&at, sizeof at)) die("connect");
  return fd;
}
static void lat(int side, int fd, char *at, size_t size, const char *mode) {
  // Both ends count alike: the first learns how long it takes, and tells.
  long turns = 20;
  for (int round = 0; round < 2; round++) {
    double begin = now();
    for (long i = 0; i < turns; i++) {
      if (side == 0) give(fd, at, size);
      take(fd, at + size, size);
      if (side == 1) give(fd, at, size);
    }
    double each = (now() - begin) / turns;
    if (round == 0 && side == 0) {
      turns = seconds / each;
      if (turns < 20) turns = 20;
      give(fd, (char *)&turns, sizeof turns);
    } else if (round == 0) {
      take(fd, (char *)&turns, sizeof turns);
    } else if (side == 0) {
      printf("{\"k\":\"%s\",\"size\":%zu,\"n\":2,\"v\":%.6g,\"u\":\"us\"}\n", mode, size, each / 2 * 1e6);
      fflush(stdout);
    }
  }
}
// Groups of sends and an answer of a byte, as a library's that are fenced.
static void stream(int side, int fd, char *at, size_t size, const char *mode) {
  long group = size < (1 << 20) ? 64 : (64 << 20) / size, groups = 2;
  for (int round = 0; round < 2; round++) {
    double begin = now();
    for (long i = 0; i < groups; i++) {
      if (side == 0) {
        for (long k = 0; k < group; k++) give(fd, at, size);
        take(fd, at, 1);
      } else {
        // In pieces as large as there are, into as much memory as a message has.
        size_t room = size < (1 << 16) ? 1 << 16 : size;
        for (size_t left = size * group; left;) {
          size_t now = left < room ? left : room;
          take(fd, at, now);
          left -= now;
        }
        give(fd, at, 1);
      }
    }
    double each = (now() - begin) / groups / group;
    if (round == 0 && side == 0) {
      groups = seconds / each / group;
      if (groups < 2) groups = 2;
      give(fd, (char *)&groups, sizeof groups);
    } else if (round == 0) {
      take(fd, (char *)&groups, sizeof groups);
    } else if (side == 0) {
      printf("{\"k\":\"%s\",\"size\":%zu,\"n\":2,\"v\":%.6g,\"u\":\"GB/s\"}\n", mode, size, size / each * 1e-9);
      fflush(stdout);
    }
  }
}
int main(int count, char **words) {
  int option;
  while ((option = getopt(count, words, "a:b:c:t:")) > 0) {
    if (option == 't') seconds = atof(optarg);
    if (option == 'c') congestion = optarg;
    if (option == 'a' || option == 'b') {
      char *comma = strchr(optarg, ',');
      if (!comma) return 2;
      *comma = 0;
      space[option - 'a'] = optarg;
      address[option - 'a'] = comma + 1;
    }
  }
  for (; optind + 1 < count; optind += 2) {
    const char *mode = words[optind];
    spins = !strstr(mode, "sleep");
    for (char *word = strtok(words[optind + 1], ","); word; word = strtok(0, ",")) {
      size_t size = strtoull(word, 0, 10);
      int port[2];
      if (pipe(port)) die("pipe");
      fflush(stdout);
      pid_t child = fork();
      if (child < 0) die("fork");
      if (!child) prctl(PR_SET_PDEATHSIG, SIGKILL);
      int side = child ? 0 : 1;
      enter(side);
      char *at = memory(2 * (size < (1 << 16) ? 1 << 16 : size));
      int fd = join(side, port);
      (strncmp(mode, "lat", 3) ? stream : lat)(side, fd, at, size, mode);
      if (!child) _exit(0);
      int status;
      waitpid(child, &status, 0);
      close(fd);
      close(port[0]);
      close(port[1]);
      munmap(at, size < (1 << 16) ? 1 << 16 : size);
      if (status) return 1;
    }
  }
  return 0;
}
