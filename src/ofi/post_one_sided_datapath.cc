#include "src/ofi/post_one_sided_datapath.h"

#include <algorithm>
#include <mutex>

#include "src/ofi/post_datapath.h"

namespace verbena::ofi {
namespace {

// libfabric's numbers are the messenger's, in the same order.
static_assert(FI_INT8 == static_cast<int>(AtomicType::kInt8) &&
              FI_UINT64 == static_cast<int>(AtomicType::kUint64) &&
              FI_DOUBLE == static_cast<int>(AtomicType::kDouble) &&
              FI_LONG_DOUBLE_COMPLEX == static_cast<int>(AtomicType::kLongDoubleComplex));
static_assert(FI_MIN == static_cast<int>(AtomicOperation::kMin) &&
              FI_LXOR == static_cast<int>(AtomicOperation::kLogicalXor) &&
              FI_BXOR == static_cast<int>(AtomicOperation::kBitXor) &&
              FI_ATOMIC_WRITE == static_cast<int>(AtomicOperation::kWrite) &&
              FI_CSWAP == static_cast<int>(AtomicOperation::kSwapIfEqual) &&
              FI_CSWAP_LE == static_cast<int>(AtomicOperation::kSwapIfLessOrEqual) &&
              FI_CSWAP_GT == static_cast<int>(AtomicOperation::kSwapIfGreater) &&
              FI_MSWAP == static_cast<int>(AtomicOperation::kSwapMasked));

struct Notice {
  void* context;
  uint32_t flags;  // of the messenger
};

// Whether an operation leaves an entry, is counted alone, or neither.
Notice notice_of(const Direction& direction, const Counter* counter, void* context, uint64_t flags,
                 bool silent) {
  const uint32_t fence = (flags & FI_FENCE) != 0 ? uint32_t{kMessageFence} : 0;
  if (!silent && (!direction.selective || (flags & FI_COMPLETION) != 0)) return {context, fence};
  return {context, fence | (counter == nullptr ? kMessageSilent : kWithoutEntry)};
}

// A list of values, as pieces.
struct Values {
  Values(std::span<const fi_ioc> from, uint32_t value_bytes) : count(from.size()) {
    for (size_t i = 0; i < count && i < kPieces; ++i) {
      // More than an atomic has, they are as many as nothing else.
      const size_t values = std::min(from[i].count, kAtomicBytes + 1);
      pieces[i] = {from[i].addr, values * value_bytes};
    }
  }
  std::span<const iovec> span() const { return {pieces, count}; }

  iovec pieces[kPieces];
  size_t count;
};

}  // namespace

int check_atomic(fi_datatype type, fi_op operation, AtomicCall call) {
  if (static_cast<unsigned>(type) > FI_LONG_DOUBLE_COMPLEX ||
      static_cast<unsigned>(operation) > FI_MSWAP)
    return -FI_EOPNOTSUPP;
  const auto what = static_cast<AtomicOperation>(operation);
  const bool callable = compares(what) == (call == AtomicCall::kCompare) &&
                        (what != AtomicOperation::kRead || call == AtomicCall::kFetch);
  return callable && has_atomic(static_cast<AtomicType>(type), what) ? 0 : -FI_EOPNOTSUPP;
}

ssize_t transfer(fid_ep* handle, const OneSided& posted) {
  auto& endpoint = *static_cast<Endpoint*>(handle);
  const std::lock_guard guard(endpoint.domain.lock);
  WaitPoint::notify_all(endpoint.domain);
  if (posted.pieces.size() > kPieces || posted.remote.size() > kPieces) [[unlikely]]
    return -FI_EINVAL;
  const int64_t peer = endpoint.peer_of(posted.peer);
  if (peer < 0) [[unlikely]]
    return peer;
  // Sends that wait go first.
  if (endpoint.deferred.has(static_cast<PeerNumber>(peer))) [[unlikely]]
    return -FI_EAGAIN;
  const uint64_t flags = posted.own_flags ? posted.flags : endpoint.sends.flags;
  const bool injected = posted.silent || (!posted.reads && (flags & FI_INJECT) != 0);
  if (bytes_in(posted.pieces) > (injected ? kInjectBytes : kMaxMessageBytes)) [[unlikely]]
    return -FI_EMSGSIZE;
  const Notice notice = notice_of(endpoint.sends, posted.reads ? endpoint.reads : endpoint.writes,
                                  posted.context, flags, posted.silent);
  const OneSidedRequest request{.peer = static_cast<PeerNumber>(peer),
                                .pieces = posted.pieces,
                                .remote = posted.remote,
                                .context = notice.context,
                                .data = posted.data,
                                .flags = notice.flags |
                                         (posted.has_data ? uint32_t{kMessageData} : 0) |
                                         (injected ? uint32_t{kMessageCopied} : 0)};
  return internal::answer(
      endpoint, request.peer,
      posted.reads ? endpoint.messenger->get(request) : endpoint.messenger->put(request));
}

ssize_t change(fid_ep* handle, const Atomic& posted, AtomicCall call) {
  auto& endpoint = *static_cast<Endpoint*>(handle);
  const std::lock_guard guard(endpoint.domain.lock);
  WaitPoint::notify_all(endpoint.domain);
  if (const int none = check_atomic(posted.type, posted.operation, call); none != 0) return none;
  if (posted.operands.size() > kPieces || posted.compared.size() > kPieces ||
      posted.results.size() > kPieces || posted.remote.size() > kPieces)
    return -FI_EINVAL;
  const int64_t peer = endpoint.peer_of(posted.peer);
  if (peer < 0) [[unlikely]]
    return peer;
  // Sends that wait go first.
  if (endpoint.deferred.has(static_cast<PeerNumber>(peer))) [[unlikely]]
    return -FI_EAGAIN;
  const uint64_t flags = posted.own_flags ? posted.flags : endpoint.sends.flags;
  const auto type = static_cast<AtomicType>(posted.type);
  const auto operation = static_cast<AtomicOperation>(posted.operation);
  const uint32_t value_bytes = atomic_bytes(type);
  RemoteRange remote[kPieces];
  uint64_t bytes = 0;
  for (size_t i = 0; i < posted.remote.size(); ++i) {
    const fi_rma_ioc& range = posted.remote[i];
    if (range.count > kAtomicBytes / value_bytes) return -FI_EMSGSIZE;
    remote[i] = {.address = range.addr, .bytes = range.count * value_bytes, .key = range.key};
    bytes += remote[i].bytes;
  }
  if (bytes > (posted.silent ? kInjectBytes : kAtomicBytes)) return -FI_EMSGSIZE;
  const bool fetches = call != AtomicCall::kBase;
  const Notice notice = notice_of(endpoint.sends, fetches ? endpoint.reads : endpoint.writes,
                                  posted.context, flags, posted.silent);
  const bool reads = operation == AtomicOperation::kRead;
  const Values operands(reads ? std::span<const fi_ioc>() : posted.operands, value_bytes);
  const Values compared(posted.compared, value_bytes);
  const Values results(posted.results, value_bytes);
  if ((!reads && bytes_in(operands.span()) != bytes) ||
      (fetches && bytes_in(results.span()) != bytes) ||
      (call == AtomicCall::kCompare && bytes_in(compared.span()) != bytes))
    return -FI_EINVAL;
  return internal::answer(endpoint, static_cast<PeerNumber>(peer),
                          endpoint.messenger->atomic({.peer = static_cast<PeerNumber>(peer),
                                                      .type = type,
                                                      .operation = operation,
                                                      .operands = operands.span(),
                                                      .compared = compared.span(),
                                                      .results = results.span(),
                                                      .remote = {remote, posted.remote.size()},
                                                      .context = notice.context,
                                                      .flags = notice.flags}));
}

}  // namespace verbena::ofi
