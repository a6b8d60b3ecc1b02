// The control path of endpoints: opening, binding, enabling, options, names.
#include "src/ofi/endpoint.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <rdma/fi_cm.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <span>
#include <string_view>
#include <utility>

#include "src/base/log.h"
#include "src/base/runtime.h"
#include "src/ofi/info.h"
#include "src/ofi/wait_point.h"

namespace verbena::ofi {
namespace {

// MPIs wait inside of a send or receive for which there is no room, so that programs that post
// many before they wait for any would never end. Tables are zeroed memory of the system: what is
// not used is not there.
constexpr uint32_t kMostOperations = 1u << 18;
constexpr uint32_t kMostUnexpected = 1u << 18;
// How long the peers of an endpoint that is closed have time to take what it has sent.
constexpr uint64_t kClosePatienceNs = 30'000'000'000;
// And to take its confirmations that it has received what they have sent.
constexpr uint64_t kConfirmationPatienceNs = 5'000'000'000;
// Messages of 8 KiB are copied, which on soft0 takes a quarter of what a READ of them takes. The
// memory of a connection is 350 KiB then.
constexpr uint32_t kSlotBytes = (8 << 10) + 64;
// Programs have windows of 64 messages under way, and more; what finds no slot goes by SEND, which
// takes both sides three times as long. A ring is 2 MiB, at both ends together.
constexpr uint32_t kRingSlots = 128;
// Where it is pinned, which is often limited to 8 MiB, a ring is 0.5 MiB.
constexpr uint32_t kPinnedRingSlots = 32;
constexpr uint64_t kUnexpectedBytes = 256ull << 20;

// Where other hosts reach this one: VERBENA_HOST, or the first address that is not of this host
// alone.
std::string own_host(const Device& device) {
  if (const char* named = getenv("VERBENA_HOST"); named != nullptr && *named != '\0') return named;
  std::string found = "127.0.0.1";
  if (device.info().kind == DeviceKind::kSoft) return found;  // it ends at the host
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return found;
  for (const ifaddrs* one = interfaces; one != nullptr; one = one->ifa_next) {
    const bool usable = one->ifa_addr != nullptr && one->ifa_addr->sa_family == AF_INET &&
                        (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_LOOPBACK) == 0;
    if (!usable) continue;
    char text[INET_ADDRSTRLEN] = {};
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text,
              sizeof(text));
    found = text;
    break;
  }
  freeifaddrs(interfaces);
  return found;
}

// How much memory stays registered for the next message. On soft0 that pins nothing, but children
// of fork() copy it.
uint64_t registered_bytes(const Device& device) {
  constexpr uint64_t kMost = uint64_t{4} << 30;
  const uint64_t usual = MessengerOptions().registered_bytes;
  if (device.info().kind != DeviceKind::kSoft) return usual;
  const auto pages = static_cast<uint64_t>(std::max(0l, sysconf(_SC_PHYS_PAGES)));
  return std::clamp(pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 4, usual, kMost);
}

// Leaves `way` as it is where the variable is not set.
template <typename Way>
Status set_way(const char* variable, std::span<const std::pair<std::string_view, Way>, 3> ways,
               Way& way) {
  const char* const asked = getenv(variable);
  if (asked == nullptr || *asked == '\0') return Status::ok_status();
  for (const auto& [name, one] : ways) {
    if (name != asked) continue;
    way = one;
    return Status::ok_status();
  }
  return {StatusCode::kInvalidArgument, fmt::format("{} is '{}'; it can be {}, {} or {}", variable,
                                                    std::string_view(asked).substr(0, 32),
                                                    ways[0].first, ways[1].first, ways[2].first)};
}

// What a user may choose by variables of the environment.
Status set_ways(MessengerOptions& options) {
  // Whether short messages leave from buffers that are used often.
  static constexpr std::pair<std::string_view, ReusedBuffers> kReused[] = {
      {"copied", ReusedBuffers::kCopied},
      {"measured", ReusedBuffers::kMeasured},
      {"paper", ReusedBuffers::kPaper}};
  static constexpr std::pair<std::string_view, LongMessages> kLong[] = {
      {"read", LongMessages::kRead},
      {"write", LongMessages::kWrite},
      {"automatic", LongMessages::kAutomatic}};
  VERBENA_RETURN_IF_ERROR(
      set_way<ReusedBuffers>("FI_VERBENA_REUSED_BUFFERS", kReused, options.reused_buffers));
  return set_way<LongMessages>("FI_VERBENA_LONG_MESSAGES", kLong, options.long_messages);
}

// The host and port that the program has chosen for an endpoint, if it has.
void set_place(const fi_info& info, MessengerOptions& options) {
  MessengerAddress place;
  if (info.src_addr == nullptr || info.src_addrlen < sizeof(place)) return;
  memcpy(&place, info.src_addr, sizeof(place));
  const std::string host = host_of(place);
  if (host != "::" && host != "0.0.0.0") options.host = host;
  options.port = port_of(place);
}

// Endpoints of one info have one port, which only the first one of them gets: the others are
// reached by what fi_getname tells.
Result<std::unique_ptr<Messenger>> open_at_any_port(const Domain& domain,
                                                    MessengerOptions& options) {
  Result<std::unique_ptr<Messenger>> messenger =
      open_messenger(domain.device, domain.protection_domain, domain.secret, options);
  if (messenger.ok() || options.port == 0 || messenger.status().code() != StatusCode::kUnavailable)
    return messenger;
  log_info("fi_endpoint: {}; the endpoint gets another port", messenger.status().message());
  options.port = 0;
  return open_messenger(domain.device, domain.protection_domain, domain.secret, options);
}

void remove_from(std::vector<Endpoint*>& list, const Endpoint* endpoint) {
  std::erase(list, endpoint);
}

int close_endpoint(fid* handle) {
  auto& endpoint = object_of<Endpoint>(handle);
  if (!endpoint.drain(kClosePatienceNs)) {
    log_warning(
        "fi_close: messages are lost that a peer did not take within {} s; end the processes of a "
        "job together",
        kClosePatienceNs / 1'000'000'000);
  }
  Domain& domain = endpoint.domain;
  {
    const std::lock_guard guard(domain.lock);
    for (Direction* direction : {&endpoint.sends, &endpoint.receives}) {
      if (direction->queue != nullptr) remove_from(direction->queue->endpoints, &endpoint);
      if (direction->counter != nullptr) remove_from(direction->counter->endpoints, &endpoint);
    }
    for (Counter* counter :
         {endpoint.reads, endpoint.writes, endpoint.remote_reads, endpoint.remote_writes}) {
      if (counter != nullptr) remove_from(counter->endpoints, &endpoint);
    }
    if (endpoint.vector != nullptr) remove_from(endpoint.vector->endpoints, &endpoint);
    // From here on nobody else makes it progress, so that it takes no further message.
    remove_from(domain.endpoints, &endpoint);
    remove_from(domain.enabled, &endpoint);
  }
  if (!endpoint.wind_down(kConfirmationPatienceNs)) {
    log_warning("fi_close: peers were not told within {} s that their messages were received",
                kConfirmationPatienceNs / 1'000'000'000);
  }
  {
    const std::lock_guard guard(domain.lock);
    delete &endpoint;  // its messenger lets go of memory that the domain's endpoints share
  }
  --domain.users;
  return 0;
}

int bind_queue(Endpoint& endpoint, CompletionQueue& queue, uint64_t flags) {
  if ((flags & (FI_SEND | FI_RECV)) == 0) return -FI_EINVAL;
  if (queue.waits_at_descriptor && endpoint.messenger->event_descriptor() < 0) {
    return report("fi_ep_bind",
                  Status(StatusCode::kInvalidArgument,
                         "the completion queue has a descriptor to wait at (FI_WAIT_FD), but the "
                         "endpoint was opened when its domain had only queues without; open the "
                         "queue first"));
  }
  const auto directions = {std::pair{FI_SEND, &endpoint.sends}, {FI_RECV, &endpoint.receives}};
  for (const auto& [flag, direction] : directions) {
    if ((flags & flag) != 0 && direction->queue != nullptr) return -FI_EINVAL;
  }
  for (const auto& [flag, direction] : directions) {
    if ((flags & flag) == 0) continue;
    direction->queue = &queue;
    direction->selective = (flags & FI_SELECTIVE_COMPLETION) != 0;
  }
  if (std::ranges::find(queue.endpoints, &endpoint) == queue.endpoints.end())
    queue.endpoints.push_back(&endpoint);
  return 0;
}

int bind_counter(Endpoint& endpoint, Counter& counter, uint64_t flags) {
  const auto places = {std::pair{FI_SEND, &endpoint.sends.counter},
                       {FI_RECV, &endpoint.receives.counter},
                       {FI_READ, &endpoint.reads},
                       {FI_WRITE, &endpoint.writes},
                       {FI_REMOTE_READ, &endpoint.remote_reads},
                       {FI_REMOTE_WRITE, &endpoint.remote_writes}};
  for (const auto& [flag, place] : places) {
    if ((flags & flag) != 0 && *place != nullptr) return -FI_EINVAL;
  }
  for (const auto& [flag, place] : places) {
    if ((flags & flag) == 0) continue;
    *place = &counter;
    if (std::ranges::find(counter.endpoints, &endpoint) == counter.endpoints.end())
      counter.endpoints.push_back(&endpoint);
  }
  return 0;
}

// What an object is that is not of the endpoint's domain; else null.
const char* name_of_other_domain(const Endpoint& endpoint, fid* other) {
  const auto differs = [&endpoint](const auto& object) {
    return &object.domain != &endpoint.domain;
  };
  switch (other->fclass) {
    case FI_CLASS_AV:
      return differs(object_of<AddressVector>(other)) ? "the address vector" : nullptr;
    case FI_CLASS_CQ:
      return differs(object_of<CompletionQueue>(other)) ? "the completion queue" : nullptr;
    case FI_CLASS_CNTR:
      return differs(object_of<Counter>(other)) ? "the counter" : nullptr;
    default:
      return nullptr;
  }
}

int bind_endpoint(fid* handle, fid* other, uint64_t flags) {
  auto& endpoint = object_of<Endpoint>(handle);
  if (const char* const object = name_of_other_domain(endpoint, other); object != nullptr)
    return refuse_other_domain("fi_ep_bind", object, "the endpoint");
  const std::lock_guard guard(endpoint.domain.lock);
  switch (other->fclass) {
    case FI_CLASS_AV:
      if (endpoint.vector != nullptr) return -FI_EINVAL;
      endpoint.vector = &object_of<AddressVector>(other);
      endpoint.vector->endpoints.push_back(&endpoint);
      return 0;
    case FI_CLASS_CQ:
      return bind_queue(endpoint, object_of<CompletionQueue>(other), flags);
    case FI_CLASS_CNTR:
      return bind_counter(endpoint, object_of<Counter>(other), flags);
    case FI_CLASS_EQ:  // nothing happens to an endpoint that it would tell
      return 0;
    default:
      return -FI_EINVAL;
  }
}

// Capabilities without any direction are those of all.
constexpr bool has_direction(uint64_t capabilities, uint64_t directions) {
  constexpr uint64_t kAll =
      FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  return (capabilities & directions) != 0 || (capabilities & kAll) == 0;
}

int enable(Endpoint& endpoint) {
  if (endpoint.vector == nullptr) return -FI_ENOAV;
  const auto lacks_place = [](const Direction& direction) {
    return direction.queue == nullptr && direction.counter == nullptr;
  };
  if (endpoint.sending && lacks_place(endpoint.sends)) return -FI_ENOCQ;
  if (endpoint.receiving && lacks_place(endpoint.receives)) return -FI_ENOCQ;
  if (!std::exchange(endpoint.enabled, true)) {
    endpoint.domain.enabled.push_back(&endpoint);
    // Who waits for what peers do to memory waits for this one, too.
    WaitPoint::notify_all(endpoint.domain);
  }
  return 0;
}

int control_endpoint(fid* handle, int command, void* argument) {
  auto& endpoint = object_of<Endpoint>(handle);
  const std::lock_guard guard(endpoint.domain.lock);
  auto* flags = static_cast<uint64_t*>(argument);
  switch (command) {
    case FI_ENABLE:
      return enable(endpoint);
    case FI_GETOPSFLAG:
      *flags = (*flags & FI_SEND) != 0 ? endpoint.sends.flags : endpoint.receives.flags;
      return 0;
    case FI_SETOPSFLAG:
      if ((*flags & FI_SEND) != 0) endpoint.sends.flags = *flags & ~FI_SEND;
      if ((*flags & FI_RECV) != 0) endpoint.receives.flags = *flags & ~FI_RECV;
      return 0;
    default:
      return -FI_ENOSYS;
  }
}

int get_name(fid* handle, void* address, size_t* size_bytes) {
  const MessengerAddress own = object_of<Endpoint>(handle).messenger->address();
  const size_t room_bytes = std::exchange(*size_bytes, sizeof(own));
  memcpy(address, &own, std::min(room_bytes, sizeof(own)));
  return room_bytes < sizeof(own) ? -FI_ETOOSMALL : 0;
}

int get_option(fid* handle, int level, int name, void* value, size_t* size_bytes) {
  if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  if (std::exchange(*size_bytes, sizeof(size_t)) < sizeof(size_t)) return -FI_ETOOSMALL;
  memcpy(value, &object_of<Endpoint>(handle).least_multi_bytes, sizeof(size_t));
  return 0;
}

int set_option(fid* handle, int level, int name, const void* value, size_t size_bytes) {
  if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  if (size_bytes != sizeof(size_t)) return -FI_EINVAL;
  memcpy(&object_of<Endpoint>(handle).least_multi_bytes, value, sizeof(size_t));
  return 0;
}

ssize_t cancel(fid* handle, void* context) {
  auto& endpoint = object_of<Endpoint>(handle);
  const std::lock_guard guard(endpoint.domain.lock);
  WaitPoint::notify_all(endpoint.domain);
  return endpoint.messenger->cancel(context) ? 0 : -FI_ENOENT;
}

fi_ops endpoint_object_calls = object_calls(close_endpoint, bind_endpoint, control_endpoint);
fi_ops_ep endpoint_calls = {
    .size = sizeof(fi_ops_ep),
    .cancel = cancel,
    .getopt = get_option,
    .setopt = set_option,
    .tx_ctx = &unsupported,
    .rx_ctx = &unsupported,
    .rx_size_left = &unsupported,
    .tx_size_left = &unsupported,
};
fi_ops_cm name_calls = {
    .size = sizeof(fi_ops_cm),
    .setname = &unsupported,
    .getname = get_name,
    .getpeer = &unsupported,
    .connect = &unsupported,
    .listen = &unsupported,
    .accept = &unsupported,
    .reject = &unsupported,
    .shutdown = &unsupported,
    .join = &unsupported,
};

}  // namespace

Endpoint::Endpoint(Domain& of, const fi_info& info, std::unique_ptr<Messenger> opened,
                   void* context)
    : fid_ep{},
      domain(of),
      messenger(std::move(opened)),
      directed((info.caps & FI_DIRECTED_RECV) != 0),
      sending(has_direction(info.caps, FI_SEND | FI_READ | FI_WRITE)),
      receiving((info.caps & (FI_MSG | FI_TAGGED)) != 0 && has_direction(info.caps, FI_RECV)) {
  fid = {.fclass = FI_CLASS_EP, .context = context, .ops = &endpoint_object_calls};
  ops = &endpoint_calls;
  cm = &name_calls;
  fid_ep::msg = &message_calls;
  tagged = &tagged_calls;
  rma = &rma_calls;
  fid_ep::atomic = &atomic_calls;
  if (info.tx_attr != nullptr) sends.flags = info.tx_attr->op_flags;
  if (info.rx_attr != nullptr) receives.flags = info.rx_attr->op_flags;
}

// Where one process ends, all that talk to it say so: a line each, and not one for each peer after
// it.
void Endpoint::note_lost(PeerNumber peer) {
  failure = messenger->peer_status(peer).message();
  if (!std::exchange(has_told_of_loss_, true)) log_error("{}", failure);
}

void Endpoint::note_failure(const MessageCompletion& done) {
  if (done.outcome == MessageOutcome::kPeerLost) {
    note_lost(done.peer);
  } else if (done.outcome == MessageOutcome::kFailed) {
    failure = messenger->error().message();
    if (failure.empty()) failure = "the receiver of a long message cannot register its memory";
    log_error("{}", failure);
  }
}

int Endpoint::refusal(PeerNumber peer) {
  if (peer == kAnyPeer || messenger->peer_status(peer).ok())
    return report("a message", messenger->error());
  note_lost(peer);
  return -kPeerLostError;
}

int Endpoint::too_long(size_t bytes, bool injected) {
  log_error("a message of {} bytes{} is too long: the limit is {}; {}", bytes,
            injected ? " that is injected" : "", injected ? kInjectBytes : kMaxMessageBytes,
            injected ? "send it without fi_inject or FI_INJECT" : "send it in parts");
  return -FI_EMSGSIZE;
}

int64_t Endpoint::add_peer(fi_addr_t number) {
  if (vector == nullptr || number >= vector->addresses.size() ||
      vector->addresses[number] == MessengerAddress{})
    return -FI_EINVAL;
  const Result<PeerNumber> peer = messenger->add_peer(vector->addresses[number]);
  if (!peer.ok()) return report("an address of the address vector", peer.status());
  if (number >= peers_.size()) peers_.resize(vector->addresses.size(), kAnyPeer);
  if (*peer >= numbers_.size()) numbers_.resize(*peer + 1, FI_ADDR_NOTAVAIL);
  peers_[number] = *peer;
  if (numbers_[*peer] == FI_ADDR_NOTAVAIL) numbers_[*peer] = number;
  return *peer;
}

fi_addr_t Endpoint::find_number(PeerNumber peer) {
  if (vector == nullptr) return FI_ADDR_NOTAVAIL;
  const fi_addr_t number = vector->number_of(messenger->address_of(peer));
  if (number == FI_ADDR_NOTAVAIL) return number;
  return add_peer(number) < 0 ? FI_ADDR_NOTAVAIL : number;
}

// Others of the domain have their turn between the steps, and those that this thread would have to
// look after theirs in it: they may be what is waited for.
template <typename Step>
bool Endpoint::step_until(uint64_t patience_ns, Step&& step) {
  const uint64_t deadline_ns = now_ns() + patience_ns;
  Waiter waiter;
  while (true) {
    {
      const std::lock_guard guard(domain.lock);
      if (step()) return true;
      for (Endpoint* other : domain.endpoints) {
        if (other != this) other->messenger->progress();
      }
      // Who sleeps may miss what these calls have taken.
      WaitPoint::notify_all(domain);
    }
    if (now_ns() >= deadline_ns) return false;
    waiter.idle();
  }
}

bool Endpoint::drain(uint64_t patience_ns) {
  return step_until(patience_ns, [this] {
    if (deferred.empty()) return true;
    messenger->progress();
    deferred.post(*messenger, kQueueOperations, [](const SendRequest&) {});
    return deferred.empty();
  });
}

bool Endpoint::wind_down(uint64_t patience_ns) {
  return step_until(patience_ns, [this] { return messenger->wind_down(); });
}

void Endpoint::forget(fi_addr_t number) {
  if (number >= peers_.size()) return;
  const PeerNumber peer = std::exchange(peers_[number], kAnyPeer);
  if (peer != kAnyPeer && numbers_[peer] == number) numbers_[peer] = FI_ADDR_NOTAVAIL;
}

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** endpoint, void* context) {
  if (info->ep_attr != nullptr && info->ep_attr->type != FI_EP_RDM &&
      info->ep_attr->type != FI_EP_UNSPEC)
    return -FI_EINVAL;
  auto& of = static_cast<Domain&>(*domain);
  MessengerOptions options;
  options.host = own_host(of.device);
  set_place(*info, options);
  options.max_peers = MessengerOptions::kMostPeers;
  options.events = of.sleeping_queues.load() > 0 || of.polled_queues.load() == 0;
  options.max_operations = kMostOperations;
  options.max_completions = 2 * kMostOperations;
  options.max_unexpected = kMostUnexpected;
  options.unexpected_bytes = kUnexpectedBytes;
  options.slot_bytes = kSlotBytes;
  options.ring_slots =
      of.device.info().kind == DeviceKind::kHardware ? kPinnedRingSlots : kRingSlots;
  options.registered_bytes = registered_bytes(of.device);
  options.exposed = of.exposed;
  options.reused_buffers = ReusedBuffers::kCopied;
  if (const Status set = set_ways(options); !set.ok()) return report("fi_endpoint", set);
  Result<std::unique_ptr<Messenger>> messenger = open_at_any_port(of, options);
  if (!messenger.ok()) return report("fi_endpoint", messenger.status());
  if ((*messenger)->eager_limit_bytes() < kInjectBytes ||
      (*messenger)->one_sided_limit_bytes() < kInjectBytes ||
      (*messenger)->atomic_limit_bytes() < kAtomicBytes)
    return -FI_EINVAL;
  auto* made = new (std::nothrow) Endpoint(of, *info, std::move(*messenger), context);
  if (made == nullptr) return -FI_ENOMEM;
  {
    const std::lock_guard guard(of.lock);
    of.endpoints.push_back(made);
  }
  ++of.users;
  *endpoint = made;
  return 0;
}

}  // namespace verbena::ofi
