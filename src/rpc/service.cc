// The parts of a service that are not on the data path.
#include "verbena/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "src/base/assert.h"
#include "src/base/runtime.h"
#include "verbena/client.h"
#include "verbena/server.h"

namespace verbena {
namespace {

Status check_slots(Protocol protocol, uint32_t request_slot_bytes, uint32_t response_slot_bytes) {
  if (protocol == Protocol::kRead) {
    return Status(StatusCode::kInvalidArgument,
                  "a service needs a protocol whose responder takes part; READ reads memory only");
  }
  constexpr uint32_t kLeastSlotBytes = 8;
  constexpr uint32_t kMostSlotBytes = kMaxMessageBytes - kServiceHeaderBytes;
  for (const uint32_t bytes : {request_slot_bytes, response_slot_bytes}) {
    if (bytes < kLeastSlotBytes || bytes > kMostSlotBytes) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("request_slot_bytes is {} and response_slot_bytes {}; choose {} to "
                      "{} each",
                      request_slot_bytes, response_slot_bytes, kLeastSlotBytes, kMostSlotBytes));
    }
  }
  return Status::ok_status();
}

Status check_large(const char* option, uint32_t bytes) {
  if (bytes <= kMaxServiceMessageBytes) return Status::ok_status();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{} is {}; choose at most {}", option, bytes, kMaxServiceMessageBytes));
}

}  // namespace

const char* call_result_name(CallResult result) {
  switch (result) {
    case CallResult::kOk:
      return "ok";
    case CallResult::kFailed:
      return "failed";
    case CallResult::kUnknownType:
      return "unknown type";
    case CallResult::kTooLarge:
      return "too large";
    case CallResult::kShuttingDown:
      return "shutting down";
    case CallResult::kTimedOut:
      return "timed out";
    case CallResult::kDisconnected:
      return "disconnected";
  }
  VERBENA_ASSERT(false && "not a call result");
  return "";
}

namespace {

// What clients and servers say of their slots in the same words.
template <typename Ends, typename Options>
Result<Ends> with_slots_of(const Options& options) {
  VERBENA_RETURN_IF_ERROR(
      check_slots(options.protocol, options.request_slot_bytes, options.response_slot_bytes));
  VERBENA_RETURN_IF_ERROR(check_large("response_max_bytes", options.response_max_bytes));
  Ends ends;
  ends.request_max_bytes = options.request_slot_bytes + kServiceHeaderBytes;
  ends.response_max_bytes = options.response_slot_bytes + kServiceHeaderBytes;
  ends.pending = options.pending;
  ends.blocking = options.blocking;
  ends.huge_pages = options.huge_pages;
  ends.handshake_timeout_ns = options.handshake_timeout_ns;
  return ends;
}

}  // namespace

namespace internal {

Result<ResponderOptions> ServerMemory::responder_options(const ServerOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(ResponderOptions responder, with_slots_of<ResponderOptions>(options));
  VERBENA_RETURN_IF_ERROR(check_large("request_max_bytes", options.request_max_bytes));
  responder.max_connections = options.max_connections;
  responder.receive_queues = options.receive_queues;
  return responder;
}

Result<std::unique_ptr<char[]>> message_memory(const char* option, uint32_t max_bytes,
                                               uint64_t slots) {
  const uint64_t bytes = slots * max_bytes;
  std::unique_ptr<char[]> memory(new (std::nothrow) char[bytes]);
  if (memory != nullptr) return memory;
  return Status(StatusCode::kLimitExceeded,
                fmt::format("the system has no {} bytes of memory for {} slots whose {} is {}; "
                            "choose fewer slots or smaller messages",
                            bytes, slots, option, max_bytes));
}

Result<ServerMemory> ServerMemory::create(const ServerOptions& options) {
  const uint64_t slots = uint64_t{options.max_connections} * options.pending;
  ServerMemory memory;
  memory.pending = options.pending;
  if (options.request_max_bytes > options.request_slot_bytes) {
    memory.request_stride_bytes = options.request_max_bytes;
    VERBENA_ASSIGN_OR_RETURN(memory.requests,
                             message_memory("request_max_bytes", options.request_max_bytes, slots));
  }
  if (options.response_max_bytes > options.response_slot_bytes) {
    memory.response_stride_bytes = options.response_max_bytes;
    VERBENA_ASSIGN_OR_RETURN(
        memory.responses, message_memory("response_max_bytes", options.response_max_bytes, slots));
  }
  memory.calls.reset(new (std::nothrow) PartialCall[slots]);
  if (memory.calls != nullptr) return memory;
  return Status(StatusCode::kLimitExceeded,
                fmt::format("the system has no memory for {} slots ({} connections with {} each); "
                            "lower max_connections or pending",
                            slots, options.max_connections, options.pending));
}

Result<std::unique_ptr<char[]>> response_memory(const ClientOptions& options) {
  if (options.response_max_bytes <= options.response_slot_bytes) return std::unique_ptr<char[]>();
  return message_memory("response_max_bytes", options.response_max_bytes, options.pending);
}

uint64_t service_clock_ns() { return now_ns(); }

std::shared_ptr<Waiter> make_waiter() { return std::make_shared<Waiter>(); }
void note_progress(Waiter& waiter) { waiter.progress(); }
void note_idle(Waiter& waiter) { waiter.idle(); }

Result<RequesterOptions> requester_options(const ClientOptions& options) {
  return with_slots_of<RequesterOptions>(options);
}

Status malformed_response() {
  return Status(
      StatusCode::kProtocolViolation,
      "the server sent a response to a call that this client did not make; run the same release on "
      "both sides");
}

}  // namespace internal

template <>
Result<std::unique_ptr<Server>> Server::create(const Device& device, const ProtectionDomain& domain,
                                               const ServerOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(const ResponderOptions responder_options,
                           internal::ServerMemory::responder_options(options));
  VERBENA_ASSIGN_OR_RETURN(
      std::unique_ptr<Responder> responder,
      make_responder(options.protocol, options.layout, device, domain, responder_options));
  VERBENA_ASSIGN_OR_RETURN(internal::ServerMemory memory, internal::ServerMemory::create(options));
  return std::make_unique<Server>(std::move(responder), std::move(memory));
}

template <>
Result<std::unique_ptr<Client>> Client::connect(const Device& device,
                                                const ProtectionDomain& domain,
                                                ControlConnection& control,
                                                const ClientOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(const RequesterOptions requester_options,
                           internal::requester_options(options));
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<char[]> responses, internal::response_memory(options));
  VERBENA_ASSIGN_OR_RETURN(
      std::unique_ptr<Requester> requester,
      make_requester(options.protocol, options.layout, device, domain, control, requester_options));
  return std::make_unique<Client>(std::move(requester), options, std::move(responses));
}

}  // namespace verbena
