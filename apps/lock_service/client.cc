#include <cassert>
#include <optional>
#include <string>
#include <utility>

#include "lock_service/messages.h"
#include "verbena/apps/lock_service.h"

namespace verbena {

Result<std::unique_ptr<LockClient>> LockClient::connect(const Device& device,
                                                        const ProtectionDomain& domain,
                                                        ControlConnection& control,
                                                        const LockClientOptions& options) {
  if (options.call_timeout_ns < 1) {
    return Status(StatusCode::kInvalidArgument, "call_timeout_ns is below 1; choose 1 or more");
  }
  VERBENA_RETURN_IF_ERROR(lock_service::check_pending(options.pending));
  ClientOptions client;
  client.protocol = options.protocol;
  client.request_slot_bytes = client.response_slot_bytes = lock_service::kSlotBytes;
  client.pending = options.pending + 1;  // one for a call beside those that are posted
  client.handshake_timeout_ns = options.handshake_timeout_ns;
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Client> made,
                           Client::connect(device, domain, control, client));
  VERBENA_ASSIGN_OR_RETURN(const auto greeting,
                           control.receive_value<lock_service::Greeting>(
                               lock_service::kGreetingType, options.handshake_timeout_ns));
  if (greeting.version != lock_service::Greeting().version || greeting.lease_ns == 0) {
    return Status(StatusCode::kProtocolViolation,
                  "the lock server has version " + std::to_string(greeting.version) +
                      " of its messages, this client version " +
                      std::to_string(lock_service::Greeting().version) +
                      "; use the same release on both sides");
  }
  std::unique_ptr<LockClient> connected(new LockClient(std::move(made), options));
  connected->locks_ = greeting.locks;
  connected->sequencers_ = greeting.sequencers;
  connected->lease_ns_ = greeting.lease_ns;
  return connected;
}

LockClient::LockClient(std::unique_ptr<Client> client, const LockClientOptions& options)
    : options_(options), client_(std::move(client)), done_(options.pending) {}

Result<uint64_t> LockClient::compare_and_swap(uint32_t lock, uint64_t expected, uint64_t desired) {
  return call(lock_service::kSwap,
              lock_service::bytes_of(lock_service::SwapRequest{lock, expected, desired}));
}

Result<uint64_t> LockClient::fetch_and_add(uint32_t sequencer, uint64_t count) {
  return call(lock_service::kAdd,
              lock_service::bytes_of(lock_service::AddRequest{sequencer, count}));
}

Result<uint64_t> LockClient::call(uint16_t type, std::span<const char> request) {
  if (!status().ok()) return status();
  std::optional<CallFuture> future =
      client_->call_future_with(type, request, options_.call_timeout_ns);
  if (!future) {
    return Status(
        StatusCode::kTimeout,
        "the answers of all earlier calls are late; is the lock server's thread polling?");
  }
  future->wait();
  return number_of(future->outcome());
}

PostResult LockClient::post_fetch_and_add(uint32_t sequencer, uint64_t count, uint64_t token) {
  if (!status().ok()) return PostResult::kFailed;
  if (outstanding_ == done_.size()) return PostResult::kWouldBlock;
  const lock_service::AddRequest request{sequencer, count};
  const auto note = [this, token](const CallOutcome& outcome) { put(token, outcome); };
  if (!client_->call_with(lock_service::kAdd, lock_service::bytes_of(request), note,
                          options_.call_timeout_ns)) {
    return PostResult::kWouldBlock;
  }
  ++outstanding_;
  return PostResult::kPosted;
}

Result<uint64_t> LockClient::number_of(const CallOutcome& outcome) const {
  switch (outcome.result) {
    case CallResult::kOk: {
      lock_service::NumberResponse response;
      if (lock_service::read_message(outcome.response, &response)) return response.before;
      return Status(StatusCode::kProtocolViolation, "the lock server's answer is malformed");
    }
    case CallResult::kFailed:
      return Status(StatusCode::kInvalidArgument,
                    "the lock server refuses: " +
                        std::string(outcome.response.begin(), outcome.response.end()));
    case CallResult::kTimedOut:
      return Status(StatusCode::kTimeout,
                    "the lock server did not answer within " +
                        std::to_string(options_.call_timeout_ns / 1000) +
                        " us; is its thread polling? A lock may be held, until its lease ends");
    case CallResult::kShuttingDown:
      return Status(StatusCode::kUnavailable, "the lock server shuts down");
    case CallResult::kDisconnected:
      if (!status().ok()) return status();
      return Status(StatusCode::kUnavailable, "the connection to the lock server was closed");
    default:
      return Status(StatusCode::kProtocolViolation,
                    std::string("the lock server answers: ") + call_result_name(outcome.result));
  }
}

void LockClient::put(uint64_t token, const CallOutcome& outcome) {
  const auto capacity = static_cast<uint32_t>(done_.size());
  assert(done_count_ < capacity);
  LockCompletion& completion = done_[(first_done_ + done_count_++) % capacity];
  const Result<uint64_t> number = number_of(outcome);
  completion = {.token = token, .number = number.ok() ? *number : 0, .status = number.status()};
}

LockCompletion LockClient::take() {
  assert(done_count_ > 0 && outstanding_ > 0);
  LockCompletion taken = std::move(done_[first_done_]);
  first_done_ = (first_done_ + 1) % static_cast<uint32_t>(done_.size());
  --done_count_;
  --outstanding_;
  return taken;
}

}  // namespace verbena
