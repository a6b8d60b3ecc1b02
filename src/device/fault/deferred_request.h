// Copies of work requests that outlive the call that posted them: a caller may reuse the request,
// its gather list and inline bytes as soon as the call returns.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace verbena::fault {

template <typename Request>
class DeferredRequest {
 public:
  DeferredRequest(const Request& original, uint64_t due_ns)
      : request_(original),
        entries_(original.sg_list, original.sg_list + original.num_sge),
        due_ns_(due_ns) {
    request_.next = nullptr;
    request_.sg_list = entries_.empty() ? nullptr : entries_.data();
    copy_inline_bytes();
  }
  // The request points into its own object.
  DeferredRequest(const DeferredRequest&) = delete;
  DeferredRequest& operator=(const DeferredRequest&) = delete;

  Request* request() { return &request_; }
  // Not to be posted before; 0: only queued behind another one.
  uint64_t due_ns() const { return due_ns_; }
  void postpone(uint64_t due_ns) { due_ns_ = due_ns; }

 private:
  void copy_inline_bytes() {
    if constexpr (requires { request_.send_flags; }) {
      if ((request_.send_flags & IBV_SEND_INLINE) == 0) return;
      size_t size_bytes = 0;
      for (const ibv_sge& entry : entries_) size_bytes += entry.length;
      inline_bytes_.resize(size_bytes);
      std::byte* at = inline_bytes_.data();
      for (ibv_sge& entry : entries_) {
        if (entry.length == 0) continue;
        std::memcpy(at, reinterpret_cast<const void*>(entry.addr), entry.length);
        entry.addr = reinterpret_cast<uint64_t>(at);
        at += entry.length;
      }
    }
  }

  Request request_;
  std::vector<ibv_sge> entries_;
  std::vector<std::byte> inline_bytes_;
  uint64_t due_ns_;
};

}  // namespace verbena::fault
