// Services on top of request/response: calls with a type, an outcome and any size.
//
// What verbena/rpc.h moves are bytes in slots. A service adds what systems need around them: a
// handler per request type (verbena/server.h); calls that complete by callback or by future, with a
// time-out (verbena/client.h); messages larger than a slot; and an orderly end. Every request and
// response begins with a header of 16 bytes, which is all that it costs on the wire.
//
//   client                                  server
//   call: type, size, bytes          ->     handler(call, reply)
//                                    <-     outcome, size, bytes
//
// A request larger than a slot follows in fragments, each asked for by the server; a response
// larger than a slot is fetched in fragments by the client. So a slot carries one message at a time
// in either direction whatever the size, and nobody needs memory for more than it agreed to. Choose
// slots that hold the usual message: a larger one costs a round trip per slot's worth.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "verbena/data_path.h"
#include "verbena/status.h"

namespace verbena {

enum class CallResult : uint8_t {
  kOk,
  kFailed,        // the handler refused; the response may say why
  kUnknownType,   // the server has no handler for it
  kTooLarge,      // the request or the response exceeds what the server agreed to
  kShuttingDown,  // the server takes no more calls
  // Decided by the client:
  kTimedOut,      // no response in time; the server may have carried the call out all the same
  kDisconnected,  // the connection broke: see the client's status()
};
inline constexpr CallResult kLastCallResult = CallResult::kDisconnected;
// "ok", "failed", "unknown type", ...
const char* call_result_name(CallResult result);

inline constexpr uint32_t kMaxServiceTypes = 1024;
inline constexpr uint32_t kServiceHeaderBytes = 16;
// The largest request or response of a service.
inline constexpr uint32_t kMaxServiceMessageBytes = 1u << 30;

namespace internal {

enum class ServiceStep : uint8_t {
  kCall = 1,  // client: the beginning of a request, or all of it
  kFragment,  // client: more of it
  kFetch,     // client: asks for the response from `offset`
  kContinue,  // server: wants the next fragment
  kResponse,  // server: the response from `offset`, as much as fits
};

struct ServiceHeader {
  uint16_t type = 0;
  ServiceStep step = ServiceStep::kCall;
  CallResult result = CallResult::kOk;
  uint32_t total_bytes = 0;  // of the whole request or response
  uint32_t offset = 0;       // of this part
  uint32_t call = 0;         // the client's number for it

  void write_to(char* message) const { copy_bytes(message, this, sizeof(*this)); }
  // The message lies in memory that the peer can write: read once, checked afterwards.
  static ServiceHeader read_from(const char* message) {
    ServiceHeader header;
    copy_bytes(&header, message, sizeof(header));
    return header;
  }
};
static_assert(sizeof(ServiceHeader) == kServiceHeaderBytes);

// Memory for messages larger than their slots. It is not touched before it is used, so the system
// gives no pages for what is never needed. kLimitExceeded, naming the option: there is not so much.
Result<std::unique_ptr<char[]>> message_memory(const char* option, uint32_t max_bytes,
                                               uint64_t slots);

}  // namespace internal
}  // namespace verbena
