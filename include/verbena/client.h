// The client of a service: calls that complete by callback or by future.
//
//   auto client = Client::connect(*device, *domain, control, {.protocol = Protocol::kWriteWrite});
//   std::optional<CallSlot> slot = (*client)->acquire();  // none: all are in use; poll, try again
//   memcpy(slot->buffer.data(), key, key_bytes);          // in place: nothing is copied
//   (*client)->call(*slot, kGet, key_bytes, [](const CallOutcome& outcome) { ... });
//   while ((*client)->outstanding() > 0) (*client)->poll();
//
//   CallFuture future = (*client)->call_future(*(*client)->acquire(), kPing, 0);
//   if (future.wait(1'000'000) && future.outcome().result == CallResult::kOk) ...
//
// Callbacks run inside poll(), on its thread, and may use the client, too: call, poll, wait. The
// response's bytes lie where they landed and stay valid until the callback makes another call or
// returns, or as long as the future lives.
//
// Threading: one thread at a time. Nothing allocates after connect().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "verbena/data_path.h"
#include "verbena/design_estimate.h"
#include "verbena/rpc.h"
#include "verbena/service.h"

namespace verbena {

struct ClientOptions {
  Protocol protocol = Protocol::kWriteWrite;  // as the server's, or kAutomatic
  MarkLayout layout = MarkLayout::kLastBit;
  // The slots, without the service's header; at most the server's.
  uint32_t request_slot_bytes = 256;
  uint32_t response_slot_bytes = 4096;
  uint32_t pending = 16;
  // The largest response; above the slot's size it is fetched in parts, into memory of this client:
  // `pending` times so much. 0: as the slot. A larger one is kTooLarge.
  uint32_t response_max_bytes = 0;
  bool blocking = false;
  bool huge_pages = false;
  int64_t handshake_timeout_ns = 10'000'000'000;
};

inline constexpr int64_t kNoTimeout = -1;

struct CallOutcome {
  CallResult result = CallResult::kOk;
  std::span<const char> response;
};

// A slot for one call, with the memory of its request.
struct CallSlot {
  uint32_t number;
  std::span<char> buffer;  // request_slot_bytes
};

struct ClientStatistics {
  uint64_t calls = 0;
  uint64_t timed_out = 0;
  uint64_t refused = 0;    // answered with anything but kOk
  uint64_t no_slot = 0;    // acquire() found none free
  uint64_t late = 0;       // answers that came after a time-out, or to a request given up
  uint64_t fragments = 0;  // further messages of calls larger than a slot
};

class Waiter;

namespace internal {

uint64_t service_clock_ns();
// A polling loop that backs off.
std::shared_ptr<Waiter> make_waiter();
void note_progress(Waiter& waiter);
void note_idle(Waiter& waiter);

// A copy of a small, trivially copyable callable.
class CallCallback {
 public:
  static constexpr size_t kCapacityBytes = 64;

  template <typename F>
  void set(F&& function) {
    using Function = std::decay_t<F>;
    static_assert(sizeof(Function) <= kCapacityBytes && std::is_trivially_copyable_v<Function>,
                  "capture pointers, references and numbers, at most 64 bytes");
    new (storage_) Function(std::forward<F>(function));
    call_ = [](void* object, const CallOutcome& outcome) {
      (*static_cast<Function*>(object))(outcome);
    };
  }
  void operator()(const CallOutcome& outcome) { call_(storage_, outcome); }

 private:
  alignas(std::max_align_t) std::byte storage_[kCapacityBytes];
  void (*call_)(void*, const CallOutcome&) = nullptr;
};

Result<RequesterOptions> requester_options(const ClientOptions& options);
// For responses larger than their slots; null if there are none.
Result<std::unique_ptr<char[]>> response_memory(const ClientOptions& options);
Status malformed_response();

}  // namespace internal

template <typename R>
class BasicClient;

// The outcome of one call, to be waited for. Movable; destroyed before its client. Holds the call's
// slot until it is destroyed. Destroyed before the outcome is there, it does not wait: a call whose
// request has left runs, unheard; one whose request still goes in parts is given up, and does not
// run. Either way the client reads the request's memory no more.
template <typename R>
class BasicCallFuture {
 public:
  BasicCallFuture(BasicCallFuture&& other) noexcept
      : client_(std::exchange(other.client_, nullptr)), slot_(other.slot_) {}
  BasicCallFuture& operator=(BasicCallFuture&& other) noexcept {
    release();
    client_ = std::exchange(other.client_, nullptr);
    slot_ = other.slot_;
    return *this;
  }
  ~BasicCallFuture() { release(); }

  // Whether the outcome is there; does not poll.
  bool ready() const { return client_->is_done(slot_); }
  // Polls the client (other calls' callbacks run meanwhile) until the outcome is there, at most for
  // `timeout_ns` (negative: no limit); whether it is.
  bool wait(int64_t timeout_ns = kNoTimeout) { return client_->poll_until_done(slot_, timeout_ns); }
  // Needs ready().
  const CallOutcome& outcome() const { return client_->outcome_of(slot_); }

 private:
  friend class BasicClient<R>;
  BasicCallFuture(BasicClient<R>* client, uint32_t slot) : client_(client), slot_(slot) {}
  void release() {
    if (client_ != nullptr) client_->drop_future(slot_);
    client_ = nullptr;
  }

  BasicClient<R>* client_;
  uint32_t slot_;
};

// `R` is Requester, or the requester of a compiled design point (verbena/design.h).
template <typename R = Requester>
class BasicClient {
 public:
  using Future = BasicCallFuture<R>;

  // `requester` was made with internal::requester_options(options), `responses` is
  // internal::response_memory(options).
  BasicClient(std::unique_ptr<R> requester, const ClientOptions& options,
              std::unique_ptr<char[]> responses)
      : requester_(std::move(requester)),
        request_bytes_(options.request_slot_bytes),
        large_bytes_(responses != nullptr ? options.response_max_bytes : 0),
        large_(std::move(responses)),
        slots_(options.pending),
        free_(options.pending),
        unposted_(options.pending) {
    for (uint32_t slot = 0; slot < options.pending; ++slot) free_[slot] = slot;
    free_count_ = options.pending;
  }

  // Connects to the server at the other end of `control`: see make_requester(). Also
  // kLimitExceeded: the system has not the memory for `pending` of the largest responses.
  static Result<std::unique_ptr<BasicClient>> connect(const Device& device,
                                                      const ProtectionDomain& domain,
                                                      ControlConnection& control,
                                                      const ClientOptions& options);

  // --- calls ---

  // A slot for a call; none while all wait for their outcome (back-pressure: poll, then try again).
  // It is taken until its call is complete, or give_back().
  std::optional<CallSlot> acquire() {
    if (free_count_ == 0) {
      ++statistics_.no_slot;
      return std::nullopt;
    }
    const uint32_t number = free_[first_free_];
    first_free_ = next(first_free_);
    --free_count_;
    slots_[number].state = State::kHeld;
    return CallSlot{number,
                    {requester_->request_buffer(number) + kServiceHeaderBytes, request_bytes_}};
  }
  void give_back(const CallSlot& slot) { free(slot.number); }

  // Calls with the first `bytes` of the slot's buffer. `on_done(const CallOutcome&)` runs once, in
  // a later poll(): a small callable that captures pointers, references and numbers. After
  // `timeout_ns` (negative: never) it is kTimedOut; the slot comes back when the response does.
  template <typename OnDone>
  void call(const CallSlot& slot, uint16_t type, uint32_t bytes, OnDone&& on_done,
            int64_t timeout_ns = kNoTimeout) {
    slots_[slot.number].callback.set(std::forward<OnDone>(on_done));
    slots_[slot.number].has_future = false;
    begin(slot.number, type, slot.buffer.first(bytes), bytes, timeout_ns);
  }
  // The same with a future.
  Future call_future(const CallSlot& slot, uint16_t type, uint32_t bytes,
                     int64_t timeout_ns = kNoTimeout) {
    slots_[slot.number].has_future = true;
    begin(slot.number, type, slot.buffer.first(bytes), bytes, timeout_ns);
    return Future(this, slot.number);
  }

  // Calls with a request of any size that lies elsewhere: what fits a slot is copied, the rest goes
  // in parts, straight from there; it must stay as it is until the call is complete. False: no slot
  // is free.
  template <typename OnDone>
  bool call_with(uint16_t type, std::span<const char> request, OnDone&& on_done,
                 int64_t timeout_ns = kNoTimeout) {
    const std::optional<CallSlot> slot = acquire();
    if (!slot) return false;
    slots_[slot->number].callback.set(std::forward<OnDone>(on_done));
    slots_[slot->number].has_future = false;
    begin_with(*slot, type, request, timeout_ns);
    return true;
  }
  std::optional<Future> call_future_with(uint16_t type, std::span<const char> request,
                                         int64_t timeout_ns = kNoTimeout) {
    const std::optional<CallSlot> slot = acquire();
    if (!slot) return std::nullopt;
    slots_[slot->number].has_future = true;
    begin_with(*slot, type, request, timeout_ns);
    return Future(this, slot->number);
  }

  // --- progress ---

  // Takes responses, sends what is due, completes calls whose time is over; returns how many
  // messages arrived. Never blocks.
  uint32_t poll() {
    const uint32_t found = take_responses();
    if (unposted_count_ > 0) [[unlikely]]
      post_again();
    if (!status().ok()) [[unlikely]]
      disconnect();
    polls_ += found != 0 ? 1 : kIdleWeight;
    if (polls_ >= kPollsPerClock) [[unlikely]]
      check_deadlines();
    return found;
  }
  // Sleeps until a response may have come: see Requester::wait(). Then poll.
  bool wait(int64_t timeout_ns) {
    polls_ = kPollsPerClock;
    return requester_->wait(timeout_ns);
  }

  // Calls without an outcome yet.
  uint32_t outstanding() const { return outstanding_; }

  // Waits for the outstanding calls, at most for `timeout_ns`, and ends the connection; those that
  // did not make it are kDisconnected. True if all did.
  bool shut_down(int64_t timeout_ns) {
    const uint64_t start_ns = internal::service_clock_ns();
    while (outstanding_ > 0 && status().ok() && !is_over(start_ns, timeout_ns)) poll_or_pause();
    const bool all = outstanding_ == 0;
    requester_->close();
    disconnect();
    return all;
  }

  const Status& status() const { return status_.ok() ? requester_->status() : status_; }
  const ClientStatistics& statistics() const { return statistics_; }
  const ConnectionStatistics& connection_statistics() const { return requester_->statistics(); }
  // What the connection uses, what it costs, and who chose it (verbena/design_estimate.h).
  DesignChoice design() const { return requester_->design(); }
  R& requester() { return *requester_; }

 private:
  friend class BasicCallFuture<R>;
  using Header = internal::ServiceHeader;
  using Step = internal::ServiceStep;

  enum class State : uint8_t {
    kFree,
    kHeld,       // acquired
    kWaiting,    // for its outcome
    kDone,       // the outcome waits for its future
    kAbandoned,  // complete for the user, but the response is still to come
  };

  struct Slot {
    State state = State::kFree;
    bool has_future = false;
    bool late_response = false;  // kDone: a response is still to come, and nobody wants it
    uint16_t type = 0;
    uint32_t call = 0;
    uint32_t post_bytes = 0;  // of the message in the slot's request buffer
    std::span<const char> request;
    size_t sent_bytes = 0;
    uint32_t received_bytes = 0;
    uint32_t response_bytes = 0;
    uint64_t deadline_ns = 0;  // 0: none
    CallOutcome outcome;
    internal::CallCallback callback;
  };

  // The clock is read once in so many polls that found something, or some hundred that did not.
  static constexpr uint32_t kPollsPerClock = 8192;
  static constexpr uint32_t kIdleWeight = 64;

  uint32_t next(uint32_t index) const { return index + 1 == free_.size() ? 0 : index + 1; }

  static bool is_over(uint64_t start_ns, int64_t timeout_ns) {
    return timeout_ns >= 0 &&
           internal::service_clock_ns() - start_ns >= static_cast<uint64_t>(timeout_ns);
  }

  void free(uint32_t number) {
    slots_[number].state = State::kFree;
    uint32_t last = first_free_ + free_count_;
    if (last >= free_.size()) last -= static_cast<uint32_t>(free_.size());
    free_[last] = number;  // in turn, as responders expect it
    ++free_count_;
  }

  void begin_with(const CallSlot& slot, uint16_t type, std::span<const char> request,
                  int64_t timeout_ns) {
    const size_t first = request.size() < request_bytes_ ? request.size() : request_bytes_;
    if (first > 0) copy_bytes(slot.buffer.data(), request.data(), first);
    begin(slot.number, type, request, static_cast<uint32_t>(first), timeout_ns);
  }

  void begin(uint32_t number, uint16_t type, std::span<const char> request, uint32_t first_bytes,
             int64_t timeout_ns) {
    Slot& slot = slots_[number];
    slot.state = State::kWaiting;
    slot.type = type;
    slot.call = ++calls_;
    slot.request = request;
    slot.sent_bytes = first_bytes;
    slot.received_bytes = slot.response_bytes = 0;
    slot.deadline_ns =
        timeout_ns < 0 ? 0 : internal::service_clock_ns() + static_cast<uint64_t>(timeout_ns);
    ++outstanding_;
    ++statistics_.calls;
    if (slot.deadline_ns != 0) {
      ++with_deadline_;
      polls_ = kPollsPerClock;
    }
    send(number, Step::kCall, 0, first_bytes);
  }

  // The payload lies in the slot's request buffer.
  void send(uint32_t number, Step step, uint32_t offset, uint32_t bytes) {
    Slot& slot = slots_[number];
    Header header;
    header.type = slot.type;
    header.step = step;
    // More than the header can say is more than any server takes.
    header.total_bytes = static_cast<uint32_t>(std::min<size_t>(slot.request.size(), UINT32_MAX));
    header.offset = offset;
    header.call = slot.call;
    header.write_to(requester_->request_buffer(number));
    slot.post_bytes = kServiceHeaderBytes + bytes;
    // A connection that broke is noticed by poll().
    if (requester_->try_post(number, slot.post_bytes) == PostResult::kWouldBlock) {
      unposted_[unposted_count_++] = number;
    }
  }

  void post_again() {
    const uint32_t count = std::exchange(unposted_count_, 0);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t number = unposted_[i];
      if (requester_->try_post(number, slots_[number].post_bytes) == PostResult::kWouldBlock) {
        unposted_[unposted_count_++] = number;
      }
    }
  }

  uint32_t take_responses() {
    if constexpr (std::is_same_v<R, Requester>) {
      // A callback that polls goes on with those that came with its own.
      if (next_response_ == response_count_) {
        response_count_ = requester_->poll(std::span<Response>(responses_));
        next_response_ = 0;
      }
      uint32_t found = 0;
      for (; next_response_ < response_count_; ++found) {
        const Response response = responses_[next_response_++];
        take(response.slot, response.bytes);
      }
      return found;
    } else {
      return requester_->poll(
          [this](uint32_t slot, std::span<const char> bytes) { take(slot, bytes); });
    }
  }

  void take(uint32_t number, std::span<const char> bytes) {
    Slot& slot = slots_[number];
    if (slot.state == State::kAbandoned || slot.state == State::kDone) [[unlikely]] {
      ++statistics_.late;
      slot.late_response = false;
      if (slot.state == State::kAbandoned) free(number);
      return;
    }
    if (bytes.size() < kServiceHeaderBytes || slot.state != State::kWaiting) [[unlikely]]
      return break_off();
    const Header header = Header::read_from(bytes.data());
    const std::span<const char> payload = bytes.subspan(kServiceHeaderBytes);
    if (header.call != slot.call || header.result > kLastCallResult) [[unlikely]]
      return break_off();
    if (header.step == Step::kResponse && header.total_bytes == payload.size() &&
        slot.received_bytes == 0) [[likely]] {
      complete(number, {header.result, payload});
      return;
    }
    take_part(number, header, payload);
  }

  void take_part(uint32_t number, const Header& header, std::span<const char> payload) {
    Slot& slot = slots_[number];
    if (header.step == Step::kContinue && slot.sent_bytes < slot.request.size()) {
      const size_t rest = slot.request.size() - slot.sent_bytes;
      const auto bytes = static_cast<uint32_t>(rest < request_bytes_ ? rest : request_bytes_);
      const auto offset = static_cast<uint32_t>(slot.sent_bytes);
      copy_bytes(requester_->request_buffer(number) + kServiceHeaderBytes,
                 slot.request.data() + slot.sent_bytes, bytes);
      slot.sent_bytes += bytes;
      ++statistics_.fragments;
      send(number, Step::kFragment, offset, bytes);
      return;
    }
    if (header.step != Step::kResponse || header.offset != slot.received_bytes || payload.empty() ||
        payload.size() > header.total_bytes - header.offset ||
        (slot.received_bytes > 0 && header.total_bytes != slot.response_bytes)) {
      return break_off();
    }
    if (header.total_bytes > large_bytes_) {
      complete(number, {CallResult::kTooLarge, {}});
      return;
    }
    char* whole = large_.get() + size_t{number} * large_bytes_;
    copy_bytes(whole + slot.received_bytes, payload.data(), payload.size());
    if (slot.received_bytes == 0) slot.outcome.result = header.result;
    slot.response_bytes = header.total_bytes;
    slot.received_bytes += static_cast<uint32_t>(payload.size());
    if (slot.received_bytes < slot.response_bytes) {
      ++statistics_.fragments;
      send(number, Step::kFetch, slot.received_bytes, 0);
      return;
    }
    complete(number, {slot.outcome.result, {whole, slot.response_bytes}});
  }

  // The slot is free before the callback runs, so that it can be used for the next call.
  void complete(uint32_t number, const CallOutcome& outcome, State afterwards = State::kFree) {
    Slot& slot = slots_[number];
    --outstanding_;
    if (slot.deadline_ns != 0) --with_deadline_;
    slot.deadline_ns = 0;
    if (outcome.result == CallResult::kTimedOut) {
      ++statistics_.timed_out;
    } else if (outcome.result != CallResult::kOk) {
      ++statistics_.refused;
    }
    if (slot.has_future) {
      slot.outcome = outcome;
      slot.late_response = afterwards == State::kAbandoned;
      slot.state = State::kDone;
      return;
    }
    internal::CallCallback callback = slot.callback;
    if (afterwards == State::kAbandoned) {
      slot.state = State::kAbandoned;
    } else {
      free(number);
    }
    callback(outcome);
  }

  void check_deadlines() {
    polls_ = 0;
    if (with_deadline_ == 0) return;
    const uint64_t now_ns = internal::service_clock_ns();
    for (uint32_t number = 0; number < slots_.size(); ++number) {
      const Slot& slot = slots_[number];
      if (slot.state == State::kWaiting && slot.deadline_ns != 0 && slot.deadline_ns <= now_ns) {
        complete(number, {CallResult::kTimedOut, {}}, State::kAbandoned);
      }
    }
  }

  void break_off() {
    // Else a callback has ended the connection, and more responses had come with its own.
    if (status().ok()) status_ = internal::malformed_response();
    requester_->close();
  }

  void disconnect() {
    unposted_count_ = 0;
    if (outstanding_ == 0) return;
    for (uint32_t number = 0; number < slots_.size(); ++number) {
      if (slots_[number].state == State::kWaiting) {
        complete(number, {CallResult::kDisconnected, {}});
      }
    }
  }

  // --- futures ---

  bool is_done(uint32_t number) const { return slots_[number].state == State::kDone; }
  const CallOutcome& outcome_of(uint32_t number) const { return slots_[number].outcome; }
  bool poll_until_done(uint32_t number, int64_t timeout_ns) {
    const uint64_t start_ns = internal::service_clock_ns();
    while (!is_done(number)) {
      if (!poll_or_pause() && is_over(start_ns, timeout_ns)) return is_done(number);
    }
    return true;
  }
  bool poll_or_pause() {
    const bool found = poll() > 0;
    found ? internal::note_progress(*waiter_) : internal::note_idle(*waiter_);
    return found;
  }
  void drop_future(uint32_t number) {
    Slot& slot = slots_[number];
    if (slot.state == State::kDone && !slot.late_response) {
      free(number);
    } else if (slot.state == State::kDone) {
      slot.state = State::kAbandoned;
    } else if (slot.state == State::kWaiting && slot.sent_bytes < slot.request.size()) {
      // The rest would be read from memory that need not be there any more. The server forgets what
      // it has of the request with the slot's next call.
      --outstanding_;
      if (slot.deadline_ns != 0) --with_deadline_;
      slot.state = State::kAbandoned;
    } else {
      // Nobody is interested any more: the slot comes back with the response.
      slot.has_future = false;
      slot.callback.set([](const CallOutcome&) {});
    }
  }

  std::unique_ptr<R> requester_;
  uint32_t request_bytes_;
  uint32_t large_bytes_;  // 0: no response is larger than a slot
  std::unique_ptr<char[]> large_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;  // a ring
  uint32_t first_free_ = 0;
  uint32_t free_count_ = 0;
  std::vector<uint32_t> unposted_;  // slots whose message met a full send queue
  uint32_t unposted_count_ = 0;
  // Of the latest poll of a requester whose design is chosen at run time.
  Response responses_[std::is_same_v<R, Requester> ? 16 : 1];
  uint32_t response_count_ = 0;
  uint32_t next_response_ = 0;
  uint32_t outstanding_ = 0;
  uint32_t with_deadline_ = 0;
  uint32_t polls_ = 0;
  uint32_t calls_ = 0;
  std::shared_ptr<Waiter> waiter_ = internal::make_waiter();
  ClientStatistics statistics_;
  Status status_;
};

using Client = BasicClient<Requester>;
using CallFuture = BasicCallFuture<Requester>;

template <>
Result<std::unique_ptr<Client>> BasicClient<Requester>::connect(const Device& device,
                                                                const ProtectionDomain& domain,
                                                                ControlConnection& control,
                                                                const ClientOptions& options);

}  // namespace verbena
