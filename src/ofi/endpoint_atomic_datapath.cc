// The calls for atomics on remote memory.
#include <rdma/fi_atomic.h>

#include <cstdint>

#include "src/ofi/post_one_sided_datapath.h"

namespace verbena::ofi {
namespace {

fi_ioc values_at(const void* buffer, size_t count) { return {const_cast<void*>(buffer), count}; }

// The most that can be counted where there are more.
size_t values_in(const fi_ioc* values, size_t count) {
  size_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    if (__builtin_add_overflow(total, values[i].count, &total)) return SIZE_MAX;
  }
  return total;
}

ssize_t change_pieces(fid_ep* endpoint, const fi_ioc* operands, void** /*descriptors*/,
                      size_t count, fi_addr_t peer, uint64_t address, uint64_t key,
                      fi_datatype type, fi_op operation, void* context) {
  const fi_rma_ioc remote{.addr = address, .count = values_in(operands, count), .key = key};
  return change(endpoint,
                {.operands = {operands, count},
                 .remote = {&remote, 1},
                 .type = type,
                 .operation = operation,
                 .peer = peer,
                 .context = context},
                AtomicCall::kBase);
}

ssize_t change_one(fid_ep* endpoint, const void* buffer, size_t count, void* /*descriptor*/,
                   fi_addr_t peer, uint64_t address, uint64_t key, fi_datatype type,
                   fi_op operation, void* context) {
  const fi_ioc operands = values_at(buffer, count);
  return change_pieces(endpoint, &operands, nullptr, 1, peer, address, key, type, operation,
                       context);
}

Atomic atomic_of(const fi_msg_atomic* message, uint64_t flags) {
  return {.operands = {message->msg_iov, message->iov_count},
          .remote = {message->rma_iov, message->rma_iov_count},
          .type = message->datatype,
          .operation = message->op,
          .peer = message->addr,
          .context = message->context,
          .flags = flags,
          .own_flags = true};
}

ssize_t change_message(fid_ep* endpoint, const fi_msg_atomic* message, uint64_t flags) {
  return change(endpoint, atomic_of(message, flags), AtomicCall::kBase);
}

ssize_t inject_change(fid_ep* endpoint, const void* buffer, size_t count, fi_addr_t peer,
                      uint64_t address, uint64_t key, fi_datatype type, fi_op operation) {
  const fi_ioc operands = values_at(buffer, count);
  const fi_rma_ioc remote{.addr = address, .count = count, .key = key};
  return change(endpoint,
                {.operands = {&operands, 1},
                 .remote = {&remote, 1},
                 .type = type,
                 .operation = operation,
                 .peer = peer,
                 .silent = true},
                AtomicCall::kBase);
}

ssize_t fetch_pieces(fid_ep* endpoint, const fi_ioc* operands, void** /*descriptors*/, size_t count,
                     fi_ioc* results, void** /*result_descriptors*/, size_t result_count,
                     fi_addr_t peer, uint64_t address, uint64_t key, fi_datatype type,
                     fi_op operation, void* context) {
  const fi_rma_ioc remote{.addr = address, .count = values_in(results, result_count), .key = key};
  return change(endpoint,
                {.operands = {operands, count},
                 .results = {results, result_count},
                 .remote = {&remote, 1},
                 .type = type,
                 .operation = operation,
                 .peer = peer,
                 .context = context},
                AtomicCall::kFetch);
}

ssize_t fetch_one(fid_ep* endpoint, const void* buffer, size_t count, void* /*descriptor*/,
                  void* result, void* /*result_descriptor*/, fi_addr_t peer, uint64_t address,
                  uint64_t key, fi_datatype type, fi_op operation, void* context) {
  const fi_ioc operands = values_at(buffer, count);
  fi_ioc results = values_at(result, count);
  return fetch_pieces(endpoint, &operands, nullptr, 1, &results, nullptr, 1, peer, address, key,
                      type, operation, context);
}

ssize_t fetch_message(fid_ep* endpoint, const fi_msg_atomic* message, fi_ioc* results,
                      void** /*result_descriptors*/, size_t result_count, uint64_t flags) {
  Atomic atomic = atomic_of(message, flags);
  atomic.results = {results, result_count};
  return change(endpoint, atomic, AtomicCall::kFetch);
}

ssize_t compare_pieces(fid_ep* endpoint, const fi_ioc* operands, void** /*descriptors*/,
                       size_t count, const fi_ioc* compared, void** /*compared_descriptors*/,
                       size_t compared_count, fi_ioc* results, void** /*result_descriptors*/,
                       size_t result_count, fi_addr_t peer, uint64_t address, uint64_t key,
                       fi_datatype type, fi_op operation, void* context) {
  const fi_rma_ioc remote{.addr = address, .count = values_in(operands, count), .key = key};
  return change(endpoint,
                {.operands = {operands, count},
                 .compared = {compared, compared_count},
                 .results = {results, result_count},
                 .remote = {&remote, 1},
                 .type = type,
                 .operation = operation,
                 .peer = peer,
                 .context = context},
                AtomicCall::kCompare);
}

ssize_t compare_one(fid_ep* endpoint, const void* buffer, size_t count, void* /*descriptor*/,
                    const void* compare, void* /*compared_descriptor*/, void* result,
                    void* /*result_descriptor*/, fi_addr_t peer, uint64_t address, uint64_t key,
                    fi_datatype type, fi_op operation, void* context) {
  const fi_ioc operands = values_at(buffer, count);
  const fi_ioc compared = values_at(compare, count);
  fi_ioc results = values_at(result, count);
  return compare_pieces(endpoint, &operands, nullptr, 1, &compared, nullptr, 1, &results, nullptr,
                        1, peer, address, key, type, operation, context);
}

ssize_t compare_message(fid_ep* endpoint, const fi_msg_atomic* message, const fi_ioc* compared,
                        void** /*compared_descriptors*/, size_t compared_count, fi_ioc* results,
                        void** /*result_descriptors*/, size_t result_count, uint64_t flags) {
  Atomic atomic = atomic_of(message, flags);
  atomic.compared = {compared, compared_count};
  atomic.results = {results, result_count};
  return change(endpoint, atomic, AtomicCall::kCompare);
}

template <AtomicCall kCall>
int valid(fid_ep* /*endpoint*/, fi_datatype type, fi_op operation, size_t* count) {
  const int result = check_atomic(type, operation, kCall);
  if (result == 0 && count != nullptr)
    *count = kAtomicBytes / atomic_bytes(static_cast<AtomicType>(type));
  return result;
}

}  // namespace

fi_ops_atomic atomic_calls = {
    .size = sizeof(fi_ops_atomic),
    .write = change_one,
    .writev = change_pieces,
    .writemsg = change_message,
    .inject = inject_change,
    .readwrite = fetch_one,
    .readwritev = fetch_pieces,
    .readwritemsg = fetch_message,
    .compwrite = compare_one,
    .compwritev = compare_pieces,
    .compwritemsg = compare_message,
    .writevalid = valid<AtomicCall::kBase>,
    .readwritevalid = valid<AtomicCall::kFetch>,
    .compwritevalid = valid<AtomicCall::kCompare>,
};

// With FI_FETCH_ATOMIC or FI_COMPARE_ATOMIC, or neither.
int query_atomic(fid_domain* /*domain*/, fi_datatype type, fi_op operation,
                 fi_atomic_attr* attributes, uint64_t flags) {
  if ((flags & ~(FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC)) != 0 ||
      flags == (FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC))
    return -FI_EBADFLAGS;
  const AtomicCall call = flags == FI_FETCH_ATOMIC     ? AtomicCall::kFetch
                          : flags == FI_COMPARE_ATOMIC ? AtomicCall::kCompare
                                                       : AtomicCall::kBase;
  const int result = check_atomic(type, operation, call);
  if (result != 0) return result;
  attributes->size = atomic_bytes(static_cast<AtomicType>(type));
  attributes->count = kAtomicBytes / attributes->size;
  return 0;
}

}  // namespace verbena::ofi
