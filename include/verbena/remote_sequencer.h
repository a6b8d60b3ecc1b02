// A sequencer: numbers that rise by one, or ranges of them, each given to one caller only ("memsem"
// III-E). The remote one is a fetch-and-add on a word of a region, the local one on a word of this
// machine's memory. One that is answered by a server: verbena/apps/lock_service.h.
//
//   RemoteSequencer log(*region, kTail);
//   Result<uint64_t> place = log.next(record_bytes);   // so many bytes from there are the caller's
//
// A number whose caller dies before it uses it is lost: whoever reads what the numbers name must
// expect gaps. After 2^64 they begin anew.
#pragma once

#include <cstdint>

#include "verbena/data_path.h"
#include "verbena/remote.h"
#include "verbena/status.h"

namespace verbena {

class RemoteSequencer {
 public:
  // `region` must outlive it, and be writable; `word` is the next number: 0 in new memory.
  RemoteSequencer(RemoteRegion& region, RemotePointer<uint64_t> word)
      : region_(&region), word_(word) {}

  // The first of `count` numbers, which are the caller's. One round trip. Failures are those of
  // RemoteRegion::fetch_and_add().
  Result<uint64_t> next(uint64_t count = 1) { return region_->fetch_and_add(word_, count); }
  // The same without waiting: the completion's value is the first number.
  PostResult post_next(uint64_t token, uint64_t count = 1) {
    return region_->post_fetch_and_add(word_, count, token);
  }

 private:
  RemoteRegion* region_;
  RemotePointer<uint64_t> word_;
};

class LocalSequencer {
 public:
  // `word` is aligned to 8 bytes and must outlive it. It may lie in memory that processes share.
  explicit LocalSequencer(uint64_t& word) : word_(&word) {}

  uint64_t next(uint64_t count = 1) { return fetch_and_add_word(word_, count); }

 private:
  uint64_t* word_;
};

}  // namespace verbena
