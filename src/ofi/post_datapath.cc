#include "src/ofi/post_datapath.h"

#include <cstring>
#include <mutex>

#include "src/ofi/domain.h"
#include "src/ofi/info.h"

namespace verbena::ofi {
namespace {

// A claimed message is remembered in the context that the program gives for it, which may overwrite
// it.
struct KeptClaim {
  static constexpr uint32_t kMark = 0x56636c6d;

  const Endpoint* endpoint = nullptr;
  uint32_t claim = 0;
  uint32_t check = 0;  // the claim with all bits of the mark inverted
};
static_assert(sizeof(KeptClaim) <= sizeof(fi_context));

void keep_claim(void* context, const Endpoint& endpoint, uint32_t claim) {
  const KeptClaim kept{&endpoint, claim, claim ^ KeptClaim::kMark};
  memcpy(static_cast<fi_context*>(context)->internal, &kept, sizeof(kept));
}

bool find_claim(const void* context, const Endpoint& endpoint, uint32_t* claim) {
  KeptClaim kept;
  memcpy(&kept, static_cast<const fi_context*>(context)->internal, sizeof(kept));
  *claim = kept.claim;
  return kept.endpoint == &endpoint && kept.check == (kept.claim ^ KeptClaim::kMark);
}

void show(Endpoint& endpoint, const Posted& posted, const MessageInfo* info) {
  CompletionEntry entry;
  entry.shown.op_context = posted.context;
  entry.shown.flags = FI_TAGGED | FI_RECV;
  entry.shown.tag = posted.tag;
  if (info == nullptr) {
    entry.error = FI_ENOMSG;
  } else {
    entry.shown.len = info->bytes;
    entry.shown.data = info->data;
    entry.shown.tag = info->tag;
    if ((info->flags & kMessageData) != 0) entry.shown.flags |= FI_REMOTE_CQ_DATA;
    entry.source = endpoint.number_of(info->peer);
  }
  endpoint.receives.queue->push(entry);
}

// Of the message that the context claims.
ssize_t take_claimed(Endpoint& endpoint, const Posted& posted, const ReceiveRequest& request,
                     bool discards) {
  uint32_t claim = 0;
  if (!find_claim(posted.context, endpoint, &claim)) {
    return report("fi_trecvmsg",
                  Status(StatusCode::kInvalidArgument,
                         "with FI_CLAIM its context claims no message of this endpoint: it was not "
                         "used with FI_PEEK | FI_CLAIM before, or written to since; give the same "
                         "fi_context, and leave it alone meanwhile"));
  }
  Messenger& messenger = *endpoint.messenger;
  const PostResult result =
      discards ? messenger.discard_claimed(claim) : messenger.receive_claimed(claim, request);
  if (result == PostResult::kPosted) {
    // It claims nothing any more.
    memset(static_cast<fi_context*>(posted.context)->internal, 0, sizeof(KeptClaim));
    const MessageInfo discarded{.tag = posted.tag};
    if (discards) show(endpoint, posted, &discarded);
  }
  return internal::answer(endpoint, request.source, result);
}

}  // namespace

ssize_t look_for(fid_ep* handle, const Posted& posted) {
  Endpoint& endpoint = endpoint_of(handle);
  const std::lock_guard guard(endpoint.domain.lock);
  Messenger& messenger = *endpoint.messenger;
  const bool claims = (posted.flags & FI_CLAIM) != 0;
  const bool discards = (posted.flags & FI_DISCARD) != 0;
  const bool peeks = (posted.flags & FI_PEEK) != 0;
  // What is no peek is of a claimed message; one that is discarded at once is not claimed.
  if (endpoint.receives.queue == nullptr || (claims && posted.context == nullptr) ||
      (peeks ? claims && discards : !claims)) {
    return -FI_EINVAL;
  }
  if (endpoint.receives.queue->is_full()) return -FI_EAGAIN;
  const int64_t source = internal::source_of(endpoint, posted.peer);
  if (source < 0) return source;
  const ReceiveRequest request =
      internal::request_of(endpoint, posted, static_cast<PeerNumber>(source));
  if (!peeks) return take_claimed(endpoint, posted, request, discards);
  MessageInfo info;
  const bool found =
      claims || discards ? messenger.claim(request, &info) : messenger.peek(request, &info);
  if (found && claims) keep_claim(posted.context, endpoint, info.claim);
  if (found && discards) static_cast<void>(messenger.discard_claimed(info.claim));
  show(endpoint, posted, found ? &info : nullptr);
  return 0;
}

}  // namespace verbena::ofi
