#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "lock_service/messages.h"
#include "verbena/apps/lock_service.h"
#include "verbena/clock.h"

namespace verbena {

namespace {

// Of a lock whose holder is gone: no connection has this number.
constexpr uint32_t kNobody = UINT32_MAX;

Status check(const LockServerOptions& options) {
  const auto most = std::max(options.locks, options.sequencers);
  if (most > kMostLocks) {
    return Status(StatusCode::kInvalidArgument, "there are " + std::to_string(most) +
                                                    " locks or sequencers to be; choose at " +
                                                    "most " + std::to_string(kMostLocks));
  }
  if (options.lease_ns == 0) {
    return Status(StatusCode::kInvalidArgument, "lease_ns is 0; choose 1 or more");
  }
  return lock_service::check_pending(options.pending);
}

template <typename T>
CallResult respond(Reply& reply, const T& message) {
  const std::span<char> to = reply.buffer(sizeof(T));
  if (to.size() != sizeof(T)) return CallResult::kTooLarge;
  copy_bytes(to.data(), &message, sizeof(T));
  return CallResult::kOk;
}

}  // namespace

Result<std::unique_ptr<LockServer>> LockServer::create(const Device& device,
                                                       const ProtectionDomain& domain,
                                                       const LockServerOptions& options) {
  VERBENA_RETURN_IF_ERROR(check(options));
  ServerOptions server;
  server.protocol = options.protocol;
  server.request_slot_bytes = server.response_slot_bytes = lock_service::kSlotBytes;
  server.pending = options.pending + 1;  // see LockClient::connect()
  server.max_connections = options.max_connections;
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Server> made, Server::create(device, domain, server));
  return std::unique_ptr<LockServer>(new LockServer(std::move(made), options));
}

LockServer::LockServer(std::unique_ptr<Server> server, const LockServerOptions& options)
    : options_(options),
      server_(std::move(server)),
      locks_(options.locks),
      sequencers_(options.sequencers) {
  server_->handle(lock_service::kSwap,
                  [this](const Call& c, Reply& reply) { return swap(c, reply); });
  server_->handle(lock_service::kAdd,
                  [this](const Call& c, Reply& reply) { return add(c, reply); });
}

Status LockServer::connect(ControlConnection& control) {
  VERBENA_RETURN_IF_ERROR(server_->connect(control));
  VERBENA_RETURN_IF_ERROR(control.send_value(
      lock_service::kGreetingType, lock_service::Greeting{.locks = options_.locks,
                                                          .sequencers = options_.sequencers,
                                                          .lease_ns = options_.lease_ns}));
  // The client before it that had this number is gone: its locks end with their leases.
  const uint32_t connection = server_->responder().latest_connection();
  for (Lock& lock : locks_) {
    if (lock.holder == connection) lock.holder = kNobody;
  }
  return Status::ok_status();
}

CallResult LockServer::swap(const Call& call, Reply& reply) {
  lock_service::SwapRequest request;
  if (!lock_service::read_message(call.request, &request))
    return refuse(reply, "the call is malformed");
  if (request.lock >= locks_.size()) {
    char text[128];
    std::snprintf(text, sizeof(text), "there is no lock %llu: the server has %zu, from 0 on",
                  static_cast<unsigned long long>(request.lock), locks_.size());
    return refuse(reply, text);
  }
  Lock& lock = locks_[request.lock];
  if (lock.word != request.expected) {
    ++statistics_.busy;
    return respond(reply, lock_service::NumberResponse{lock.word});
  }
  const uint64_t at_ns = now_ns();
  const LockWord before = LockWord::of(lock.word);
  const LockWord desired = LockWord::of(request.desired);
  if (!permits(lock, call.connection, desired, at_ns)) {
    char text[192];
    std::snprintf(
        text, sizeof(text),
        "lock %llu with token %llu is %s: it is given back and renewed by its holder, and "
        "granted with the next token when it is free or its lease has ended",
        static_cast<unsigned long long>(request.lock),
        static_cast<unsigned long long>(before.token), before.held ? "held" : "free");
    return refuse(reply, text);
  }
  if (!desired.held) {
    ++statistics_.releases;
  } else if (before.held && lock.holder == call.connection) {
    ++statistics_.renewals;
  } else {
    ++statistics_.grants;
    if (before.held) ++statistics_.takeovers;
  }
  lock = {.word = request.desired,
          .lease_end_ns = end_of_ns(at_ns, options_.lease_ns),
          .holder = call.connection};
  return respond(reply, lock_service::NumberResponse{request.expected});
}

bool LockServer::permits(const Lock& lock, uint32_t connection, LockWord desired,
                         uint64_t at_ns) const {
  const LockWord before = LockWord::of(lock.word);
  const bool is_holder = before.held && lock.holder == connection;
  if (!desired.held) return is_holder && desired.token == before.token;
  if (desired.token != before.token + 1) return false;
  return !before.held || is_holder || at_ns >= lock.lease_end_ns;
}

CallResult LockServer::add(const Call& call, Reply& reply) {
  lock_service::AddRequest request;
  if (!lock_service::read_message(call.request, &request))
    return refuse(reply, "the call is malformed");
  if (request.sequencer >= sequencers_.size()) {
    char text[128];
    std::snprintf(text, sizeof(text), "there is no sequencer %llu: the server has %zu, from 0 on",
                  static_cast<unsigned long long>(request.sequencer), sequencers_.size());
    return refuse(reply, text);
  }
  ++statistics_.numbers;
  return respond(
      reply, lock_service::NumberResponse{std::exchange(
                 sequencers_[request.sequencer], sequencers_[request.sequencer] + request.count)});
}

CallResult LockServer::refuse(Reply& reply, const char* text) {
  ++statistics_.refused;
  const std::string_view why = text;
  const std::span<char> to = reply.buffer(why.size());
  if (to.size() == why.size()) copy_bytes(to.data(), why.data(), why.size());
  return CallResult::kFailed;
}

}  // namespace verbena
