/* Opening an entry of a package without Python, on Linux: plain C, in this header alone. Old C libraries want -ldl.

     char error[512];
     const pf_model_api* api = pf_open_entry("model.pf", "forward", error, sizeof error);
     if (!api || api->create("model.pf", &model)) ...

   A library stays open until the process ends. Its checksum is compared before it is opened, which finds damage; signatures
   are not looked at: `polyfuse package verify --trust KEY` does that. */
#ifndef POLYFUSE_PACKAGE_H
#define POLYFUSE_PACKAGE_H
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "polyfuse_model.h"

typedef struct pf_member { /* of an archive: where its bytes are, and how many */
  int64_t offset, size;
  int stored; /* as they are, not compressed */
  uint32_t crc;
} pf_member;

static inline uint64_t pf_number(const unsigned char* bytes, int count) {
  uint64_t number = 0;
  while (count-- > 0) number = number << 8 | bytes[count];
  return number;
}

/* Sizes of large members stand in an extra field, the number 1. */
static inline uint64_t pf_large_size(const unsigned char* extra, size_t length) {
  size_t at = 0;
  while (at + 4 <= length) {
    const size_t size = pf_number(extra + at + 2, 2);
    if (pf_number(extra + at, 2) == 1 && size >= 16 && at + 20 <= length) return pf_number(extra + at + 12, 8);
    at += 4 + size;
  }
  return 0;
}

/* The CRC-32 of zlib, half a byte at a time; it begins with 0. */
static inline uint32_t pf_checksum(uint32_t crc, const char* bytes, size_t count) {
  static const uint32_t rows[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
                                    0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
                                    0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
  crc = ~crc;
  while (count-- > 0) {
    crc ^= (unsigned char)*bytes++;
    crc = crc >> 4 ^ rows[crc & 15];
    crc = crc >> 4 ^ rows[crc & 15];
  }
  return ~crc;
}

/* Find a member by going from one to the next; 0 if it is there. Whatever a file says, each step goes forward, and none
   leaves the file. */
static inline int pf_find_member(int file, const char* name, pf_member* found) {
  unsigned char head[30], rest[4096];
  struct stat facts;
  uint64_t at = 0;
  int left = 16384;
  if (fstat(file, &facts) || facts.st_size < 30) return 1;
  const uint64_t end = (uint64_t)facts.st_size;
  while (left-- > 0 && at <= end - 30 && pread(file, head, 30, (off_t)at) == 30 && memcmp(head, "PK\3\4", 4) == 0) {
    const size_t length = pf_number(head + 26, 2), extra = pf_number(head + 28, 2);
    uint64_t size = pf_number(head + 18, 4);
    /* neither encrypted nor of a size that follows the content */
    if ((head[6] & ~6) || (head[7] & ~8) || length + extra > sizeof rest) return 1;
    if (pread(file, rest, length + extra, (off_t)(at + 30)) != (ssize_t)(length + extra)) return 1;
    if (size == 0xffffffff) size = pf_large_size(rest + length, extra);
    at += 30 + length + extra;
    if (size > end || at > end - size) return 1;
    found->offset = (int64_t)at;
    found->size = (int64_t)size;
    found->stored = pf_number(head + 8, 2) == 0;
    found->crc = (uint32_t)pf_number(head + 14, 4);
    if (length == strlen(name) && memcmp(rest, name, length) == 0) return 0;
    at += size;
  }
  return 1;
}

/* Copy a member into a file that exists in memory alone; its descriptor, or -1, or -2 where its checksum is not right. */
static inline int pf_member_in_memory(int file, const pf_member* member) {
  char block[65536];
  const int copy = (int)syscall(SYS_memfd_create, "polyfuse", 1u);
  int64_t done = 0;
  uint32_t crc = 0;
  while (copy >= 0 && done < member->size) {
    const int64_t left = member->size - done;
    const ssize_t got = pread(file, block, left < (int64_t)sizeof block ? (size_t)left : sizeof block, member->offset + done);
    if (got <= 0 || write(copy, block, (size_t)got) != got) {
      close(copy);
      return -1;
    }
    crc = pf_checksum(crc, block, (size_t)got);
    done += got;
  }
  if (copy >= 0 && crc != member->crc) {
    close(copy);
    return -2;
  }
  return copy;
}

static inline int pf_refused(char* error, size_t room, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error, room, format, arguments);
  va_end(arguments);
  return 1;
}

/* The path under which the linker finds an entry's library; 0 if there is one. */
static inline int pf_find_library(const char* path, const char* entry, char* library, size_t length, char* error, size_t room) {
  char name[512];
  struct stat facts;
  pf_member member;
  if (snprintf(name, sizeof name, "native/%s.so", entry) >= (int)sizeof name || stat(path, &facts))
    return pf_refused(error, room, "there is no file or folder %s", path);
  if (S_ISDIR(facts.st_mode)) {
    if (snprintf(library, length, "%s%s/%s", strchr(path, '/') ? "" : "./", path, name) < (int)length) return 0;
    return pf_refused(error, room, "the path %s is too long", path);
  }
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  const int found = file >= 0 && !pf_find_member(file, name, &member) && member.stored;
  const int copy = found ? pf_member_in_memory(file, &member) : -1;
  if (file >= 0) close(file);
  if (!found) return pf_refused(error, room, "%s is no package with %s; make it with native=True", path, name);
  if (copy == -2) return pf_refused(error, room, "%s in %s is damaged; copy the package again", name, path);
  if (copy < 0) return pf_refused(error, room, "%s in %s cannot be copied into memory; extract the package", name, path);
  /* the descriptor stays open: the linker takes two libraries of one name for the same */
  snprintf(library, length, "/proc/self/fd/%d", copy);
  return 0;
}

/* What `polyfuse_model` of an entry returns. `path`: a package, or the folder that it was extracted to. A null pointer where
   that fails, with the reason in `error`, which has `room` bytes. */
static inline const pf_model_api* pf_open_entry(const char* path, const char* entry, char* error, size_t room) {
  char library[4608];
  const pf_model_api* (*get)(void);
  if (pf_find_library(path, entry, library, sizeof library, error, room)) return 0;
  void* opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  void* symbol = opened ? dlsym(opened, "polyfuse_model") : 0;
  if (!symbol) {
    pf_refused(error, room, "the entry %s of %s cannot be opened (%s)", entry, path, dlerror());
    return 0;
  }
  memcpy(&get, &symbol, sizeof get);
  const pf_model_api* api = get();
  if (api->abi == PF_MODEL_ABI) return api;
  pf_refused(error, room, "%s has version %d of the interface where this program has %d; build it with the headers in it", path,
             (int)api->abi, PF_MODEL_ABI);
  return 0;
}
#endif
