// The server of a service: a handler per request type, for all clients of one responder.
//
//   auto server = Server::create(*device, *domain, {.protocol = Protocol::kWriteWrite});
//   (*server)->handle(kGet, [&](const Call& call, Reply& reply) {
//     std::span<const char> value = find(call.request);
//     std::span<char> to = reply.buffer(value.size());
//     if (to.size() != value.size()) return CallResult::kTooLarge;
//     memcpy(to.data(), value.data(), value.size());
//     return CallResult::kOk;
//   });
//   (*server)->connect(control);             // for each client
//   while (running) (*server)->poll();
//
// Zero-copy: a request that fits its slot is handed out where it landed, and a response that fits
// is written where it will be sent from. Only larger ones are put together in buffers of the
// server.
//
// Threading: one thread at a time. Cost per call beyond the responder's own: the header and one
// indirect call. Nothing allocates after connect().
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "verbena/data_path.h"
#include "verbena/design_estimate.h"
#include "verbena/rpc.h"
#include "verbena/service.h"

namespace verbena {

struct ServerOptions {
  Protocol protocol = Protocol::kWriteWrite;  // any but READ, which calls nobody; or kAutomatic
  MarkLayout layout = MarkLayout::kLastBit;
  // The slots, without the service's header: see the responder's options of the same names.
  uint32_t request_slot_bytes = 256;
  uint32_t response_slot_bytes = 4096;
  uint32_t pending = 16;
  uint32_t max_connections = 16;
  // The largest request and response; above the slot's size they travel in parts. 0: as the slot.
  // Memory of max_connections * pending times both is set aside, and used as far as it is needed.
  uint32_t request_max_bytes = 0;
  uint32_t response_max_bytes = 0;
  ReceiveQueues receive_queues = ReceiveQueues::kShared;
  bool blocking = false;
  bool huge_pages = false;
  int64_t handshake_timeout_ns = 10'000'000'000;
};

struct Call {
  uint16_t type;
  uint32_t connection;  // which client; Server::status(connection), statistics(connection)
  // All of it. Memory that the client's device can still write: copy what is checked and used.
  std::span<const char> request;
};

// Where a handler puts its response.
class Reply {
 public:
  // Memory for a response of `bytes`, which makes it that long; empty if that is more than the
  // service allows. Call it once; a handler that does not answers with nothing.
  std::span<char> buffer(size_t bytes) {
    if (bytes > std::max(slot_.size(), large_.size())) return {};
    bytes_ = static_cast<uint32_t>(bytes);
    return (bytes <= slot_.size() ? slot_ : large_).first(bytes);
  }

 private:
  template <typename R>
  friend class BasicServer;
  Reply(std::span<char> slot, std::span<char> large) : slot_(slot), large_(large) {}

  std::span<char> slot_;
  std::span<char> large_;
  uint32_t bytes_ = 0;
};

using CallHandler = std::function<CallResult(const Call& call, Reply& reply)>;

namespace internal {

// What a server remembers of a call that travels in parts.
struct PartialCall {
  uint16_t type = 0;
  uint32_t call = 0;
  uint32_t request_bytes = 0;  // of the whole request
  uint32_t received_bytes = 0;
  uint32_t response_bytes = 0;  // of the whole response, where it is larger than the slot
};

struct ServerMemory {
  // Options for the responder, or why there can be none.
  static Result<ResponderOptions> responder_options(const ServerOptions& options);
  // Of options that the responder has accepted.
  static Result<ServerMemory> create(const ServerOptions& options);

  uint32_t pending = 0;
  uint64_t request_stride_bytes = 0;  // 0: no request is larger than a slot
  uint64_t response_stride_bytes = 0;
  std::unique_ptr<PartialCall[]> calls;  // by connection and slot
  std::unique_ptr<char[]> requests;
  std::unique_ptr<char[]> responses;

  size_t index(uint32_t connection, uint32_t slot) const {
    return size_t{connection} * pending + slot;
  }
  std::span<char> request(size_t index) const {
    return {requests.get() + index * request_stride_bytes, request_stride_bytes};
  }
  std::span<char> response(size_t index) const {
    return {responses.get() + index * response_stride_bytes, response_stride_bytes};
  }
  void forget(uint32_t connection) {
    for (uint32_t slot = 0; slot < pending; ++slot) calls[index(connection, slot)] = {};
  }
};

}  // namespace internal

// `R` is Responder, or the responder of a compiled design point (verbena/design.h).
template <typename R = Responder>
class BasicServer {
 public:
  // `responder` was made with ServerMemory::responder_options(options), `memory` is
  // ServerMemory::create(options). No client is connected yet.
  BasicServer(std::unique_ptr<R> responder, internal::ServerMemory memory)
      : memory_(std::move(memory)), responder_(std::move(responder)), handlers_(kMaxServiceTypes) {}

  // kInvalidArgument, kLimitExceeded: as make_responder(); also kLimitExceeded: the system has not
  // the memory for max_connections * pending of the largest requests or responses.
  static Result<std::unique_ptr<BasicServer>> create(const Device& device,
                                                     const ProtectionDomain& domain,
                                                     const ServerOptions& options);

  // Calls of `type` (below kMaxServiceTypes) go to `handler`, which must not call the server.
  void handle(uint16_t type, CallHandler handler) { handlers_.at(type) = std::move(handler); }

  // Takes a client in: see Responder::connect().
  Status connect(ControlConnection& control) {
    const Status status = responder_->connect(control);
    // What a former client of that number left behind is nobody's business.
    if (status.ok()) memory_.forget(responder_->latest_connection());
    return status;
  }

  // Answers the calls that have come and returns how many messages that were.
  uint32_t poll() {
    return responder_->poll([this](const Request& request, std::span<char> response) {
      return answer(request, response);
    });
  }
  // Sleeps until a call may have come: see Responder::wait().
  bool wait(int64_t timeout_ns) { return responder_->wait(timeout_ns); }

  // From here on, new calls are answered with kShuttingDown; those that travel in parts are
  // finished. Go on polling until connections() is 0, or as long as you care.
  void shut_down() { shutting_down_ = true; }

  uint64_t calls() const { return calls_; }  // that reached a handler
  uint32_t connections() const { return responder_->connections(); }
  const Status& status() const { return responder_->status(); }
  const Status& status(uint32_t connection) const { return responder_->status(connection); }
  const ConnectionStatistics& statistics(uint32_t connection) const {
    return responder_->statistics(connection);
  }
  // What all connections use, what it costs, and who chose it (verbena/design_estimate.h).
  DesignChoice design() const { return responder_->design(); }
  R& responder() { return *responder_; }

 private:
  using Header = internal::ServiceHeader;
  using Step = internal::ServiceStep;

  uint32_t answer(const Request& request, std::span<char> response) {
    if (request.bytes.size() < kServiceHeaderBytes) [[unlikely]]
      return kBreakConnection;
    const Header header = Header::read_from(request.bytes.data());
    const std::span<const char> payload = request.bytes.subspan(kServiceHeaderBytes);
    if (header.step == Step::kCall && header.total_bytes == payload.size()) [[likely]] {
      if (shutting_down_) [[unlikely]]
        return respond(header, CallResult::kShuttingDown, response, 0);
      return call(header, payload, request, response);
    }
    return answer_part(header, payload, request, response);
  }

  uint32_t call(const Header& header, std::span<const char> bytes, const Request& request,
                std::span<char> response) {
    if (header.type >= kMaxServiceTypes || !handlers_[header.type]) [[unlikely]]
      return respond(header, CallResult::kUnknownType, response, 0);
    const size_t index = memory_.index(request.connection, request.slot);
    Reply reply(response.subspan(kServiceHeaderBytes), memory_.response(index));
    ++calls_;
    const CallResult result =
        handlers_[header.type](Call{header.type, request.connection, bytes}, reply);
    if (reply.bytes_ <= response.size() - kServiceHeaderBytes) [[likely]] {
      return respond(header, result, response, reply.bytes_);
    }
    memory_.calls[index].call = header.call;
    memory_.calls[index].response_bytes = reply.bytes_;
    return respond_part(header, result, index, 0, response);
  }

  // A call that is larger than a slot, in either direction.
  uint32_t answer_part(const Header& header, std::span<const char> payload, const Request& request,
                       std::span<char> response) {
    const size_t index = memory_.index(request.connection, request.slot);
    internal::PartialCall& partial = memory_.calls[index];
    switch (header.step) {
      case Step::kCall:
        if (payload.size() > header.total_bytes || header.offset != 0) return kBreakConnection;
        if (header.total_bytes > memory_.request_stride_bytes) {
          return respond(header, CallResult::kTooLarge, response, 0);
        }
        if (shutting_down_) return respond(header, CallResult::kShuttingDown, response, 0);
        partial = {.type = header.type, .call = header.call, .request_bytes = header.total_bytes};
        break;
      case Step::kFragment:
        if (header.call != partial.call || header.offset != partial.received_bytes ||
            payload.size() > partial.request_bytes - partial.received_bytes || payload.empty()) {
          return kBreakConnection;
        }
        break;
      case Step::kFetch:
        if (header.call != partial.call || header.offset >= partial.response_bytes) {
          return kBreakConnection;
        }
        return respond_part(header, CallResult::kOk, index, header.offset, response);
      default:
        return kBreakConnection;
    }
    copy_bytes(memory_.request(index).data() + partial.received_bytes, payload.data(),
               payload.size());
    partial.received_bytes += static_cast<uint32_t>(payload.size());
    if (partial.received_bytes < partial.request_bytes) {
      Header next = header;
      next.step = Step::kContinue;
      next.write_to(response.data());
      return kServiceHeaderBytes;
    }
    Header whole = header;
    whole.type = partial.type;
    return call(whole, memory_.request(index).first(partial.request_bytes), request, response);
  }

  static uint32_t respond(Header header, CallResult result, std::span<char> response,
                          uint32_t bytes) {
    header.step = Step::kResponse;
    header.result = result;
    header.total_bytes = bytes;
    header.offset = 0;
    header.write_to(response.data());
    return kServiceHeaderBytes + bytes;
  }

  uint32_t respond_part(Header header, CallResult result, size_t index, uint32_t offset,
                        std::span<char> response) {
    const uint32_t total = memory_.calls[index].response_bytes;
    const auto bytes = static_cast<uint32_t>(
        std::min<size_t>(total - offset, response.size() - kServiceHeaderBytes));
    copy_bytes(response.data() + kServiceHeaderBytes, memory_.response(index).data() + offset,
               bytes);
    header.step = Step::kResponse;
    header.result = result;
    header.total_bytes = total;
    header.offset = offset;
    header.write_to(response.data());
    return kServiceHeaderBytes + bytes;
  }

  internal::ServerMemory memory_;
  std::unique_ptr<R> responder_;
  std::vector<CallHandler> handlers_;
  uint64_t calls_ = 0;
  bool shutting_down_ = false;
};

using Server = BasicServer<Responder>;

template <>
Result<std::unique_ptr<Server>> BasicServer<Responder>::create(const Device& device,
                                                               const ProtectionDomain& domain,
                                                               const ServerOptions& options);

}  // namespace verbena
