#include "src/message/connector.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "src/base/wire.h"
#include "src/connect/exchange.h"
#include "src/message/layer.h"

namespace verbena::message {
namespace {

// An address: an IPv6 address (of IPv4 the mapped one), a port, zeros, and a random number that
// tells a process from one that had its port before. That of a place is 0.
constexpr size_t kPortAt = 16;
constexpr size_t kIdentityAt = 24;

constexpr uint8_t kHello = connect::kFirstStepOfLayer;
constexpr uint8_t kAnswer = connect::kFirstStepOfLayer + 1;

// kTold: the address follows, which is all that was asked for.
enum Verdict : uint8_t { kGo = 1, kCrossed = 2, kKnown = 3, kTold = 4 };

constexpr int64_t kAcceptNs = 50'000'000;
constexpr int64_t kAttemptNs = 1'000'000'000;
// Between attempts at a peer that connects by itself; twice as long after each, up to 64 times.
constexpr uint64_t kCrossedNs = 5'000'000;
constexpr uint32_t kMostDoublings = 6;
constexpr uint64_t kNumberPatienceNs = 500'000'000;

void set_port(MessengerAddress& address, uint16_t port) {
  address.bytes[kPortAt] = static_cast<uint8_t>(port >> 8);
  address.bytes[kPortAt + 1] = static_cast<uint8_t>(port);
}

std::span<const std::byte> bytes_of(const MessengerAddress& address) {
  return std::as_bytes(std::span(address.bytes));
}

MessengerAddress get_address(WireReader& reader) {
  MessengerAddress address;
  const std::span<const std::byte> bytes = reader.raw(sizeof(address.bytes));
  for (size_t i = 0; i < bytes.size(); ++i) address.bytes[i] = std::to_integer<uint8_t>(bytes[i]);
  return address;
}

Status send_hello(ControlConnection& control, const MessengerAddress& from,
                  const MessengerAddress& to, int64_t timeout_ns) {
  WireWriter writer;
  connect::begin_step(writer, kLayer, kHello, Status::ok_status());
  writer.raw(bytes_of(from));
  writer.raw(bytes_of(to));
  return control.send(writer.bytes(), timeout_ns);
}

}  // namespace

Connector::Connector(const ConnectionPlan& plan, const JobSecret& secret,
                     const MessengerOptions& options, ControlListener listener)
    : plan_(plan), secret_(secret), options_(options), listener_(std::move(listener)) {}

Result<std::unique_ptr<Connector>> Connector::start(const ConnectionPlan& plan,
                                                    const JobSecret& secret,
                                                    const MessengerOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(MessengerAddress address, place_at(options.host, options.port));
  VERBENA_ASSIGN_OR_RETURN(ControlListener listener,
                           ControlListener::listen(options.host, options.port, secret));
  set_port(address, listener.port());
  while (is_place(address)) {
    secure_random(address.bytes + kIdentityAt, sizeof(address.bytes) - kIdentityAt);
  }
  std::unique_ptr<Connector> connector(new Connector(plan, secret, options, std::move(listener)));
  connector->address_ = address;
  Connector* const self = connector.get();
  self->acceptor_ = start_thread("vb-msg-accept", [self] { self->run_acceptor(); });
  self->requester_ = start_thread("vb-msg-connect", [self] { self->run_requester(); });
  if (!self->acceptor_.joinable() || !self->requester_.joinable()) {
    return Status(StatusCode::kLimitExceeded,
                  "a messenger needs two threads, and the system refuses one; raise the limit of "
                  "processes (ulimit -u, pids.max)");
  }
  return connector;
}

Connector::~Connector() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  acceptor_.join();
  requester_.join();
}

bool Connector::stopping() {
  const std::lock_guard lock(mutex_);
  return stop_;
}

Result<std::vector<std::byte>> Connector::receive_from(ControlConnection& control) {
  return connect::receive_while(control, options_.connect_timeout_ns,
                                [this] { return !stopping(); });
}

void Connector::request(const MessengerAddress& peer) {
  {
    const std::lock_guard lock(mutex_);
    Progress& progress = peers_[peer];
    if (progress.state == State::kConnected) return;  // the peer was quicker
    if (progress.state == State::kIdle) progress.state = State::kAsked;
    progress.requested = true;
    asked_.emplace(now_ns(), Request{.peer = peer});
  }
  changed_.notify_all();
}

Joined Connector::take() {
  const std::lock_guard lock(mutex_);
  VERBENA_ASSERT(!outcomes_.empty());
  Joined joined = std::move(outcomes_.front());
  outcomes_.pop_front();
  ++taken_;
  if (joined.endpoint) {
    const auto number =
        std::find(joining_.begin(), joining_.end(), joined.endpoint->queue_pair.number());
    VERBENA_ASSERT(number != joining_.end());
    joining_.erase(number);
  }
  return joined;
}

void Connector::tell(Joined joined) {
  {
    const std::lock_guard lock(mutex_);
    outcomes_.push_back(std::move(joined));
    publish_word(&news_, news_ + 1);
  }
  if (plan_.place != nullptr) plan_.place->wake();
}

void Connector::run_acceptor() {
  while (!stopping()) {
    destroy_ended();
    Result<ControlConnection> control = listener_.accept(kAcceptNs);
    if (control.ok()) {
      accept_from(std::move(*control));
    } else if (control.status().code() != StatusCode::kTimeout) {
      // No descriptor is left, say: others end, and it may work again. If not, the listener tells
      // the peers.
      sleep_ns(kAcceptNs);
    }
  }
}

void Connector::run_requester() {
  Request request;
  while (next_request(&request)) connect_to(request);
}

bool Connector::next_request(Request* request) {
  std::unique_lock lock(mutex_);
  const auto is_due = [this] { return !asked_.empty() && asked_.begin()->first <= now_ns(); };
  while (!stop_ && !is_due()) {
    const uint64_t at_ns = now_ns();
    const uint64_t next_ns = asked_.empty() ? UINT64_MAX : asked_.begin()->first;
    changed_.wait_for(lock, next_ns - std::min(at_ns, next_ns), [&] { return stop_ || is_due(); });
  }
  if (stop_) return false;
  *request = asked_.begin()->second;
  asked_.erase(asked_.begin());
  return true;
}

void Connector::ask_again(Request request) {
  const uint64_t due_ns = now_ns() + (kCrossedNs << std::min(request.attempts++, kMostDoublings));
  const std::lock_guard lock(mutex_);
  asked_.emplace(due_ns, request);
}

uint8_t Connector::verdict_on(const MessengerAddress& peer) {
  const std::lock_guard lock(mutex_);
  State& state = peers_[peer].state;
  if (state == State::kAccepting || state == State::kConnected) return kKnown;
  if (state == State::kAsked && address_ < peer) return kCrossed;
  state = State::kAccepting;
  return kGo;
}

void Connector::accept_from(ControlConnection control) {
  Joined joined;
  joined.control = std::make_unique<ControlConnection>(std::move(control));
  Result<std::vector<std::byte>> frame = receive_from(*joined.control);
  if (!frame.ok()) return;
  WireReader reader(*frame);
  const Status hello = connect::check_step(*joined.control, kLayer, reader, kHello);
  joined.peer = get_address(reader);
  const MessengerAddress meant = get_address(reader);
  Status fared = hello.ok() ? reader.finish("hello of the peer") : hello;
  const bool asks = fared.ok() && is_place(meant);
  if (fared.ok() && !asks && meant != address_) {
    fared = Status(StatusCode::kNotFound,
                   "the process that is meant has ended, and another one has its port; exchange "
                   "addresses again");
  }
  uint8_t verdict = asks ? uint8_t{kTold} : uint8_t{0};
  if (fared.ok() && !asks) verdict = verdict_on(joined.peer);
  WireWriter writer;
  connect::begin_step(writer, kLayer, kAnswer, fared);
  if (fared.ok()) writer.u8(verdict);
  if (asks) writer.raw(bytes_of(address_));
  const Status answered = joined.control->send(writer.bytes(), options_.connect_timeout_ns);
  if (verdict != kGo) return;
  joined.status = answered.ok() ? join(joined) : answered;
  conclude(joined, /*accepted=*/true);
  tell(std::move(joined));
}

void Connector::conclude(Joined& joined, bool accepted) {
  const std::lock_guard lock(mutex_);
  Progress& progress = peers_[joined.peer];
  const bool requested = progress.requested;
  if (!accepted || joined.status.ok()) progress.requested = false;
  if (progress.state == State::kConnected) {
    if (joined.status.ok())
      joined.status = Status(StatusCode::kUnavailable, "there is a connection to the peer already");
    joined.superseded = true;
  } else if (joined.status.ok()) {
    progress.state = State::kConnected;
  } else if (accepted) {
    // A later attempt, of either side, may do better.
    progress.state = requested ? State::kAsked : State::kIdle;
    joined.superseded = requested;
  } else if (progress.state == State::kAccepting) {
    joined.superseded = true;
  } else {
    progress.state = State::kIdle;
  }
}

void Connector::connect_to(Request request) {
  const auto timeout_ns = static_cast<uint64_t>(options_.connect_timeout_ns);
  if (request.deadline_ns == 0) request.deadline_ns = now_ns() + timeout_ns;
  Joined joined;
  joined.peer = request.peer;
  {
    std::unique_lock lock(mutex_);
    const State state = peers_[request.peer].state;
    if (state == State::kConnected) return;  // the peer was quicker
    if (state == State::kAccepting) {
      lock.unlock();
      return ask_again(request);
    }
  }
  uint8_t verdict = kGo;
  joined.status = connect_once(joined, request.deadline_ns, &verdict);
  if (joined.status.ok() && verdict != kGo) {
    // The peer connects to this side: that is the connection, unless it fails. As long as it says
    // that it will, it lives, and may have to wait for others before. It is the lower address that
    // does so.
    if (verdict == kCrossed && request.peer < address_) request.deadline_ns = now_ns() + timeout_ns;
    if (now_ns() < request.deadline_ns) return ask_again(request);
    joined.status = Status(StatusCode::kTimeout,
                           fmt::format("{} connects to this side, but never finished; raise "
                                       "connect_timeout_ns if it is slow",
                                       joined.control->peer_name()));
  }
  conclude(joined, /*accepted=*/false);
  tell(std::move(joined));
}

Status Connector::connect_once(Joined& joined, uint64_t deadline_ns, uint8_t* verdict) {
  const MessengerAddress& peer = joined.peer;
  Result<ControlConnection> control(Status(StatusCode::kTimeout, "not tried"));
  do {
    // In parts, so that a messenger that closes need not wait.
    if (stopping()) return Status(StatusCode::kUnavailable, "the messenger was closed");
    // The peer listened before it had an address: if nobody does, it has ended.
    control = ControlConnection::connect(host_of(peer), port_of(peer), secret_, kAttemptNs,
                                         ControlConnection::IfNobodyListens::kFail);
  } while (control.status().code() == StatusCode::kTimeout && now_ns() < deadline_ns);
  if (!control.ok()) return control.status();
  joined.control = std::make_unique<ControlConnection>(std::move(*control));
  VERBENA_RETURN_IF_ERROR(send_hello(*joined.control, address_, peer, options_.connect_timeout_ns));
  VERBENA_ASSIGN_OR_RETURN(const std::vector<std::byte> frame, receive_from(*joined.control));
  WireReader reader(frame);
  VERBENA_RETURN_IF_ERROR(connect::check_step(*joined.control, kLayer, reader, kAnswer));
  *verdict = reader.u8();
  VERBENA_RETURN_IF_ERROR(reader.finish("answer of the peer"));
  return *verdict == kGo ? join(joined) : Status::ok_status();
}

Status too_many_peers(uint32_t max_peers) {
  if (max_peers < MessengerOptions::kMostPeers) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("the messenger is connected to {} peers, and max_peers is as high; "
                              "raise it, or open another messenger",
                              max_peers));
  }
  return Status(
      StatusCode::kLimitExceeded,
      fmt::format("the messenger is connected to {} peers, the most that one can have; "
                  "use several messengers (of MPI and libfabric: fewer ranks or endpoints)",
                  max_peers));
}

// The lowest that is free. Peers that have ended may not have been noticed yet.
Status Connector::take_number(Joined& joined) {
  std::unique_lock lock(mutex_);
  const auto has_number = [this] {
    return !free_numbers_.empty() || next_number_ < options_.max_peers;
  };
  const uint64_t deadline_ns = now_ns() + kNumberPatienceNs;
  while (!has_number() && !stop_ && now_ns() < deadline_ns) {
    changed_.wait_for(lock, kNumberPatienceNs,
                      [&] { return stop_ || has_number() || !ended_.empty(); });
    lock.unlock();
    destroy_ended();
    lock.lock();
  }
  if (!has_number()) {
    return too_many_peers(options_.max_peers);
  }
  if (free_numbers_.empty()) {
    joined.number = next_number_++;
  } else {
    joined.number = free_numbers_.back();
    free_numbers_.pop_back();
  }
  joined.brings_receives = spare_receives_ == 0;
  if (!joined.brings_receives) --spare_receives_;
  return Status::ok_status();
}

void Connector::end(Joined joined, bool receives) {
  {
    const std::lock_guard lock(mutex_);
    ended_.push_back({std::move(joined), receives});
  }
  changed_.notify_all();
}

void Connector::destroy_ended() {
  std::vector<Ended> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(ended_);
  }
  if (ended.empty()) return;
  for (Ended& one : ended) {
    one.joined.endpoint.reset();
    one.joined.control.reset();
  }
  {
    const std::lock_guard lock(mutex_);
    for (const Ended& one : ended) {
      if (one.joined.number != Joined::kNoNumber) free_numbers_.push_back(one.joined.number);
      if (one.receives) ++spare_receives_;
    }
  }
  changed_.notify_all();
}

bool Connector::is_joining(uint32_t queue_pair_number) {
  const std::lock_guard lock(mutex_);
  return std::find(joining_.begin(), joining_.end(), queue_pair_number) != joining_.end();
}

Status Connector::join(Joined& joined) {
  Result<std::vector<std::byte>> mine = std::vector<std::byte>{};
  const auto prepare = [&]() -> Status {
    VERBENA_RETURN_IF_ERROR(take_number(joined));
    connect::EndpointPlan plan = plan_.endpoint;
    if (!joined.brings_receives) plan.arena_bytes -= plan_.receive_bytes;
    VERBENA_ASSIGN_OR_RETURN(joined.endpoint,
                             connect::make_endpoint(*plan_.device, *plan_.domain, plan));
    const std::lock_guard lock(mutex_);
    joining_.push_back(joined.endpoint->queue_pair.number());
    return Status::ok_status();
  };
  if (Status prepared = prepare(); !prepared.ok()) {
    mine = std::move(prepared);
  } else {
    WireWriter writer;
    writer.u32(joined.number);
    writer.u32(options_.slot_bytes);
    writer.u32(options_.ring_slots);
    writer.u32(options_.queue_credits);
    mine = std::vector<std::byte>(writer.bytes().begin(), writer.bytes().end());
  }
  return connect::join(
      *joined.control, kLayer, joined.endpoint ? &*joined.endpoint : nullptr, mine,
      [&](WireReader& reader) {
        joined.their_number = reader.u32();
        const uint32_t slot_bytes = reader.u32();
        const uint32_t ring_slots = reader.u32();
        const uint32_t queue_credits = reader.u32();
        if (!reader.failed() &&
            (slot_bytes != options_.slot_bytes || ring_slots != options_.ring_slots ||
             queue_credits != options_.queue_credits)) {
          return Status(
              StatusCode::kInvalidArgument,
              fmt::format("slot_bytes, ring_slots and queue_credits are {}, {} and {} "
                          "here, {}, {} and {} at the peer {}; give both the same",
                          options_.slot_bytes, options_.ring_slots, options_.queue_credits,
                          slot_bytes, ring_slots, queue_credits, joined.control->peer_name()));
        }
        return Status::ok_status();
      },
      options_.connect_timeout_ns, [this] { return !stopping(); });
}

}  // namespace verbena::message

namespace verbena {

Result<MessengerAddress> place_at(const std::string& host, uint16_t port) {
  MessengerAddress address;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    address.bytes[10] = address.bytes[11] = 0xff;
    for (int i = 0; i < 4; ++i) address.bytes[12 + i] = reinterpret_cast<const uint8_t*>(&v4)[i];
  } else if (inet_pton(AF_INET6, host.c_str(), address.bytes) != 1) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("host is '{}', which is no numeric address; give the IPv4 or IPv6 "
                              "address at which peers reach this host",
                              host));
  }
  message::set_port(address, port);
  return address;
}

bool is_place(const MessengerAddress& address) {
  return std::all_of(address.bytes + message::kIdentityAt, std::end(address.bytes),
                     [](uint8_t byte) { return byte == 0; });
}

std::string host_of(const MessengerAddress& address) {
  char text[INET6_ADDRSTRLEN] = "";
  const std::array<uint8_t, 12> mapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  const bool v4 = std::equal(mapped.begin(), mapped.end(), address.bytes);
  inet_ntop(v4 ? AF_INET : AF_INET6, address.bytes + (v4 ? mapped.size() : 0), text, sizeof(text));
  return text;
}

uint16_t port_of(const MessengerAddress& address) {
  return static_cast<uint16_t>(address.bytes[message::kPortAt] << 8 |
                               address.bytes[message::kPortAt + 1]);
}

Result<MessengerAddress> ask_address(const MessengerAddress& place, const JobSecret& secret,
                                     int64_t timeout_ns) {
  const auto end_ns = static_cast<int64_t>(now_ns()) + timeout_ns;
  const auto remaining_ns = [end_ns] {
    return std::max<int64_t>(end_ns - static_cast<int64_t>(now_ns()), 0);
  };
  VERBENA_ASSIGN_OR_RETURN(
      ControlConnection control,
      ControlConnection::connect(host_of(place), port_of(place), secret, timeout_ns));
  VERBENA_RETURN_IF_ERROR(message::send_hello(control, {}, place, remaining_ns()));
  VERBENA_ASSIGN_OR_RETURN(const std::vector<std::byte> frame, control.receive(remaining_ns()));
  WireReader reader(frame);
  VERBENA_RETURN_IF_ERROR(connect::check_step(control, message::kLayer, reader, message::kAnswer));
  const uint8_t verdict = reader.u8();
  const MessengerAddress found = message::get_address(reader);
  VERBENA_RETURN_IF_ERROR(reader.finish("answer of the peer"));
  if (verdict != message::kTold || is_place(found) || port_of(found) != port_of(place)) {
    return Status(
        StatusCode::kProtocolViolation,
        fmt::format("{} was asked for its address, and told something else", control.peer_name()));
  }
  return found;
}

}  // namespace verbena
