// The C library's memory calls that this library replaces, as they were before: what a replacement
// calls on.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace verbena::soft::interpose {

int next_munmap(void* address, size_t length);
int next_madvise(void* address, size_t length, int advice);
void* next_mmap(void* address, size_t length, int protection, int flags, int fd, off_t offset);
void* next_mremap(void* address, size_t old_length, size_t length, int flags, void* new_address);

// Whether the software RNIC shares a page of the range with peers.
bool peers_share(const void* address, size_t length);

bool starts_a_page(const void* address);
size_t whole_pages(size_t length);

// Tells the software RNIC that the kernel takes these pages. False, and nothing done, if the kernel
// refuses the arguments.
bool release(void* address, size_t length);

}  // namespace verbena::soft::interpose
