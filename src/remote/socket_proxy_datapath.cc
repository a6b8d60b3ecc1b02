#include <algorithm>

#include "src/base/assert.h"
#include "src/remote/socket_proxy.h"

namespace verbena::remote {

uint32_t SocketProxy::poll() {
  uint32_t found = region_->poll([](const RemoteCompletion& done) {
    auto* const lane = reinterpret_cast<SocketLane*>(done.token);
    const bool atomic = done.bytes.size() == sizeof(uint64_t);  // or a READ that long: no matter
    lane->answer({Outcome::kDone, atomic ? done.value<uint64_t>() : 0});
  });
  if (!region_->status().ok() && failure_.ok()) [[unlikely]]
    fail(region_->status());
  for (size_t i = 0; i < lanes_.size(); ++i) {
    found += serve(*lanes_[(first_ + i) % lanes_.size()]) ? 1 : 0;
  }
  ++first_;
  if (!leaving_.empty()) {
    for (SocketLane* lane : leaving_) leave(*lane);
    leaving_.clear();
  }
  return found;
}

// Whether there was a request that could be taken.
bool SocketProxy::serve(SocketLane& lane) {
  bool served = false;
  while (const ProxyRequest* const request = lane.next()) {
    if (request->kind == RequestKind::kLeave) {
      if (lane.unanswered() > 0) break;  // its memory is still in use
      lane.accept();
      leaving_.push_back(&lane);
      return true;
    }
    if (failure_.ok()) {
      const PostResult result = post(*request, reinterpret_cast<uint64_t>(&lane));
      if (result == PostResult::kWouldBlock) break;
      lane.accept();
      if (result == PostResult::kFailed) [[unlikely]]
        fail(region_->error());
    } else {
      lane.accept();
    }
    if (!failure_.ok()) [[unlikely]] {
      while (lane.unanswered() > 0) lane.answer({Outcome::kBroken, 0});
    }
    served = true;
  }
  return served;
}

PostResult SocketProxy::post(const ProxyRequest& request, uint64_t token) {
  const RemotePointer<uint64_t> word{.offset_bytes = request.offset_bytes};
  switch (request.kind) {
    case RequestKind::kRead:
      return region_->post_read(request.offset_bytes, request.local, token, request.order);
    case RequestKind::kWrite:
      return region_->post_write(request.offset_bytes, request.local, token, request.order);
    case RequestKind::kCompareAndSwap:
      return region_->post_compare_and_swap(word, request.operand, request.desired, token,
                                            request.order);
    case RequestKind::kFetchAndAdd:
      return region_->post_fetch_and_add(word, request.operand, token, request.order);
    case RequestKind::kLeave:
      break;
  }
  VERBENA_ASSERT(false);
  return PostResult::kFailed;
}

// The thread may take the lane's memory away once it has the answer, but for the rings themselves.
void SocketProxy::leave(SocketLane& lane) {
  const auto found =
      std::ranges::find_if(lanes_, [&lane](const auto& other) { return other.get() == &lane; });
  VERBENA_ASSERT(found != lanes_.end());
  const std::shared_ptr<SocketLane> kept = std::move(*found);
  lanes_.erase(found);
  kept->answer({Outcome::kDone, 0});
}

// Those who wait learn of it, those who come later do in serve().
void SocketProxy::fail(const Status& status) {
  failure_ = status;
  region_->close();  // the device lets go of all memory
  for (const std::shared_ptr<SocketLane>& lane : lanes_) {
    while (lane->unanswered() > 0) lane->answer({Outcome::kBroken, 0});
  }
}

}  // namespace verbena::remote
