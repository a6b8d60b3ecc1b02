// Turns private pages of a file (.data, a private mapping) into anonymous memory with the same
// contents, while other threads use them.
//
// userfaultfd holds threads at anonymous pages only, so these pages cannot be moved as the others.
// Instead a pipe holds the old pages (vmsplice), anonymous memory that holds whoever touches it
// takes their place in one step (mremap), and then gets the contents from the pipe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "src/device/soft/pages/page_move.h"

namespace verbena::soft {

// Lies in memory of its own, as a PageMove does.
struct PageDetach {
  // The pages, at most as many as the pipe takes, and their protection.
  std::byte* address;
  uint64_t length_bytes;
  int protection;
  int userfaultfd;  // reports mremap(), reads do not block
  int pipe_read;
  int pipe_write;
  // Anonymous, writable, of the same length: what holds the threads, and what gets the contents.
  std::byte* barrier;
  std::byte* staging;
  SpareMappings* spare;

  // The outcome, as in PageMove.
  int error;
  const char* failed_call;
  bool lost;
  bool barrier_gone;
  bool staging_gone;

  // mremap() waits until somebody has read of it from the userfaultfd: a thread that does no more.
  std::atomic<uint32_t> reader_runs;
  int stop_reader;  // an eventfd
};

// The body of a detachment, for call_on_stack() with all signals blocked.
VERBENA_IN_FLIGHT void detach_pages(void* page_detach);

// The body of the reading thread.
VERBENA_IN_FLIGHT void read_events(PageDetach* detach);

}  // namespace verbena::soft
