#include "src/device/soft/cm/connection_manager.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "src/base/assert.h"
#include "src/base/log.h"
#include "src/device/soft/cm/own_descriptors.h"
#include "src/device/soft/rnic.h"
#include "src/device/soft/soft.h"

namespace verbena::soft::cm {
namespace {

std::mutex manager_mutex;
std::atomic<ConnectionManager*> manager{nullptr};

// What the thread that forks has locked. Nothing, if the handlers came in its midst.
struct HeldForFork {
  bool holds = false;
  ConnectionManager* manager = nullptr;
};
thread_local HeldForFork held_for_fork;

// Leaves the ports at a normal exit; those of a killed process stand for nothing.
struct ReleasePortsAtExit {
  ~ReleasePortsAtExit() {
    if (ConnectionManager* made = manager.load()) made->release_ports();
  }
};

constexpr uint64_t kWakeToken = 1;
constexpr uint64_t kListenToken = 2;
constexpr uint64_t kLinePeriodNs = 10'000'000'000;

Status no_descriptors(const char* what) {
  return {StatusCode::kLimitExceeded,
          fmt::format("soft0: cannot make {} for the connection manager: {}; raise the limit of "
                      "open files (ulimit -n)",
                      what, strerror(errno))};
}

// Whether it can be opened, and its presentation.
Result<LinkLayer> ask_device() {
  ibv_context* context = open_device(device(0));
  if (context == nullptr) return Status(StatusCode::kUnavailable, control().last_error());
  const LinkLayer link_layer = link_layer_of(context);
  close_device(context);
  return link_layer;
}

// The manager's name in the directory, by a path that always fits.
sockaddr_un socket_address(int directory_fd, uint32_t slot) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path =
      fmt::format("/proc/self/fd/{}/{}", directory_fd, connection_socket_name(slot));
  VERBENA_ASSERT(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

uint64_t inode_of(int fd) {
  struct stat status {};
  // Not fstat(), which tells programs that it is a character device.
  return fstatat(fd, "", &status, AT_EMPTY_PATH) == 0 && S_ISFIFO(status.st_mode) ? status.st_ino
                                                                                  : 0;
}

}  // namespace

ConnectionManager* ConnectionManager::existing() { return manager.load(std::memory_order_acquire); }

Result<ConnectionManager*> ConnectionManager::get() {
  if (ConnectionManager* made = existing()) return made;
  VERBENA_ASSIGN_OR_RETURN(Rnic * rnic, Rnic::get());
  // Before the lock, so that no child has it held for ever; after the RNIC's, whose locks are taken
  // under this one.
  static const int registered = pthread_atfork(hold_for_fork, release_after_fork, forget_in_child);
  static_cast<void>(registered);
  std::lock_guard guard(manager_mutex);
  if (ConnectionManager* made = existing()) return made;
  std::unique_ptr<ConnectionManager> made(new ConnectionManager(rnic->registry()));
  VERBENA_RETURN_IF_ERROR(made->start());
  static ReleasePortsAtExit release_at_exit;
  // Kept until the process ends, as the RNIC.
  manager.store(made.get(), std::memory_order_release);
  return made.release();
}

ConnectionManager::~ConnectionManager() {
  for (const int fd : {listen_fd_, epoll_fd_, wake_fd_}) {
    if (fd >= 0) close_own(fd);
  }
}

void ConnectionManager::hold_for_fork() {
  manager_mutex.lock();
  held_for_fork = {.holds = true, .manager = existing()};
  if (held_for_fork.manager != nullptr) held_for_fork.manager->mutex_.lock();
}

void ConnectionManager::release_after_fork() {
  const HeldForFork held = std::exchange(held_for_fork, {});
  if (held.manager != nullptr) held.manager->mutex_.unlock();
  if (held.holds) manager_mutex.unlock();
}

// The connections are the parent's: peers are to see their end when the parent ends. The program's
// ends of channels stay open, and are none any more.
void ConnectionManager::forget_in_child() {
  ConnectionManager* parents = manager.exchange(nullptr);
  release_after_fork();
  if (parents == nullptr) return;
  for (const int fd : {parents->listen_fd_, parents->epoll_fd_, parents->wake_fd_}) close_own(fd);
  for (const auto& entry : parents->links_) close_own(entry.second->fd);
  for (const auto& entry : parents->channels_) close_own(entry.second->write_fd);
}

Status ConnectionManager::start() {
  VERBENA_ASSIGN_OR_RETURN(link_layer_, ask_device());
  Rnic* rnic = Rnic::existing();
  if (rnic == nullptr) return {StatusCode::kUnavailable, "soft0: the RNIC is gone"};
  self_ = {.slot = rnic->slot(),
           .pid = getpid(),
           .start_time_ticks = process_start_time_ticks(getpid())};
  ports_ =
      std::make_unique<PortFiles>(registry_.directory_fd(), self_,
                                  [this](const PortOwner& owner) { return owner_lives(owner); });
  ports_->clean_up();

  listen_fd_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (listen_fd_ < 0 || epoll_fd_ < 0 || wake_fd_ < 0) return no_descriptors("descriptors");
  const sockaddr_un address = socket_address(registry_.directory_fd(), self_.slot);
  unlink(address.sun_path);  // of a former process in this slot
  if (::bind(listen_fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listen_fd_, SOMAXCONN) != 0) {
    return no_descriptors("a socket in the registry's directory");
  }
  for (const auto& [fd, token] : {std::pair(listen_fd_, kListenToken), {wake_fd_, kWakeToken}}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = token;
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) return no_descriptors("a watch");
  }
  thread_ = start_thread("verbena-cm", [this] { serve(); });
  if (!thread_.joinable()) {
    return {StatusCode::kLimitExceeded,
            "soft0: cannot start the connection manager's thread; raise the limit of processes "
            "(ulimit -u, pids.max)"};
  }
  return {};
}

Status ConnectionManager::reach(const PortOwner& owner) const {
  if (owner == self_) return {};
  VERBENA_ASSIGN_OR_RETURN(const ProcessRecord record, registry_.find(owner.slot));
  if (record.pid == owner.pid && record.start_time_ticks == owner.start_time_ticks) return {};
  return {StatusCode::kUnavailable,
          fmt::format("soft0: another process has slot {} by now", owner.slot)};
}

// Of one that cannot be looked at, nothing may be taken away.
bool ConnectionManager::owner_lives(const PortOwner& owner) const {
  return reach(owner).code() != StatusCode::kUnavailable;
}

void ConnectionManager::release_ports() {
  // The connection manager's thread holds it for moments only; a thread that the exit has caught
  // may hold it for ever.
  constexpr int kTries = 1000;
  constexpr uint64_t kBetweenTriesNs = 1'000'000;
  std::unique_lock guard(mutex_, std::try_to_lock);
  for (int i = 0; i < kTries && !guard.owns_lock(); ++i) {
    sleep_ns(kBetweenTriesNs);
    static_cast<void>(guard.try_lock());
  }
  if (!guard.owns_lock()) return;
  for (const auto& entry : identifiers_) release_port(*entry.second);
}

// ---- channels ----

int ConnectionManager::open_channel(int flags) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return -1;
  // The program's end is as it asked for.
  if ((flags & O_NONBLOCK) == 0) fcntl(ends[0], F_SETFL, 0);
  if ((flags & O_CLOEXEC) == 0) fcntl(ends[0], F_SETFD, 0);
  auto channel = std::make_shared<Channel>();
  channel->inode = inode_of(ends[0]);
  channel->write_fd = ends[1];
  std::lock_guard guard(mutex_);
  channel->token = next_token_++;
  epoll_event event{};
  event.events = 0;  // only that no read end is left
  event.data.u64 = channel->token;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, ends[1], &event) != 0) {
    const int error = errno;
    close_own(ends[0]);
    close_own(ends[1]);
    errno = error;
    return -1;
  }
  channels_.emplace(channel->token, channel);
  {
    std::lock_guard inodes_guard(inodes_mutex_);
    inodes_.insert(channel->inode);
  }
  return ends[0];
}

std::shared_ptr<Channel> ConnectionManager::channel_of(int fd) {
  const uint64_t inode = inode_of(fd);
  if (inode == 0) return nullptr;
  for (const auto& entry : channels_) {
    if (entry.second->inode == inode) return entry.second;
  }
  return nullptr;
}

bool ConnectionManager::is_channel(int fd) {
  const uint64_t inode = inode_of(fd);
  std::lock_guard guard(inodes_mutex_);
  return inodes_.contains(inode);
}

void ConnectionManager::drop_closed_channels() {
  std::lock_guard guard(mutex_);
  std::vector<std::shared_ptr<Channel>> closed;
  for (const auto& entry : channels_) {
    pollfd end{.fd = entry.second->write_fd, .events = 0, .revents = 0};
    if (poll(&end, 1, 0) == 1 && (end.revents & POLLERR) != 0) closed.push_back(entry.second);
  }
  for (const auto& channel : closed) end_channel(channel);
}

void ConnectionManager::end_channel(const std::shared_ptr<Channel>& channel) {
  std::vector<Identifier*> own;
  for (const auto& entry : identifiers_) {
    if (entry.second->channel == channel) own.push_back(entry.second.get());
  }
  // Those that requests have made go with their listeners, so each is looked up again.
  std::vector<uint32_t> numbers;
  numbers.reserve(own.size());
  for (const Identifier* id : own) numbers.push_back(id->id);
  for (const uint32_t number : numbers) {
    if (Identifier* id = find(number)) destroy(*id);
  }
  {
    std::lock_guard guard(inodes_mutex_);
    inodes_.erase(channel->inode);
  }
  close_own(channel->write_fd);
  channels_.erase(channel->token);
}

// ---- events ----

void ConnectionManager::report(Identifier& id, EventType type, int32_t status) {
  Event event;
  event.response.event = static_cast<uint32_t>(type);
  event.response.status = static_cast<uint32_t>(status);
  report(id, event);
}

void ConnectionManager::report(Identifier& id, Event event) {
  // As the kernel: what befalls a new connection before the program accepts it is not told, and
  // accepting it fails.
  if (id.user_word == 0 && event.multicast == 0) return;
  if (event.multicast == 0) {
    event.response.uid = id.user_word;
    if (event.request == 0) event.response.id = id.id;
  }
  event.owner = id.id;
  queue(*id.channel, event);
}

void ConnectionManager::queue(Channel& channel, const Event& event) {
  channel.events.push_back(event);
  // A pipe that nobody reads raises a signal. The thread drops such a channel soon.
  pollfd end{.fd = channel.write_fd, .events = 0, .revents = 0};
  if (poll(&end, 1, 0) != 0) return;
  const char byte = 0;
  if (write_own(channel.write_fd, &byte, 1) != 1) ++channel.bytes_owed;
}

void ConnectionManager::take_back_bytes(int fd, size_t count) {
  if (count == 0) return;
  // Another open file, since the program's may block.
  const int take_fd =
      open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (take_fd < 0) return;  // then the program looks for events that are not there
  char bytes[64];
  while (count > 0) {
    const ssize_t got = read(take_fd, bytes, std::min(count, sizeof(bytes)));
    if (got <= 0) break;  // threads that wait have them, and find no event
    count -= static_cast<size_t>(got);
  }
  close_own(take_fd);
}

size_t ConnectionManager::drop_events(Channel& channel, uint32_t id) {
  std::vector<uint32_t> requests;
  const size_t before = channel.events.size();
  std::erase_if(channel.events, [&](const Event& event) {
    if (event.owner != id && event.request != id) return false;
    if (event.request != 0 && event.request != id) requests.push_back(event.request);
    return true;
  });
  const size_t dropped = before - channel.events.size();
  // Nobody will ever know of them.
  for (const uint32_t request : requests) {
    if (Identifier* made = find(request)) destroy(*made);
  }
  return channel.forget_owed(dropped);
}

// ---- the thread ----

int ConnectionManager::wait_ms() {
  std::lock_guard guard(mutex_);
  constexpr uint64_t kBetweenReleasesMs = 100;
  const uint64_t longest_ms = ports_->owes() ? kBetweenReleasesMs : 1'000'000;
  if (deadlines_.empty()) return ports_->owes() ? static_cast<int>(longest_ms) : -1;
  const uint64_t due_ns = deadlines_.begin()->first;
  const uint64_t at_ns = now_ns();
  if (due_ns <= at_ns) return 0;
  return static_cast<int>(std::min((due_ns - at_ns) / 1'000'000 + 1, longest_ms));
}

void ConnectionManager::serve() {
  for (;;) {
    epoll_event events[32];
    const int count = epoll_wait(epoll_fd_, events, 32, wait_ms());
    if (count < 0 && errno != EINTR) return;
    if (handle({events, static_cast<size_t>(std::max(count, 0))})) continue;
    // Without the lock, so that the program's commands go on.
    constexpr uint64_t kPauseNs = 10'000'000;
    sleep_ns(kPauseNs);
  }
}

bool ConnectionManager::handle(std::span<const epoll_event> events) {
  std::lock_guard guard(mutex_);
  bool accepted = true;
  for (const epoll_event& event : events) {
    const uint64_t token = event.data.u64;
    if (token == kWakeToken) {
      uint64_t wakes = 0;
      static_cast<void>(!read(wake_fd_, &wakes, sizeof(wakes)));
    } else if (token == kListenToken) {
      accepted = accept_links();
    } else if (const auto channel = channels_.find(token); channel != channels_.end()) {
      end_channel(std::shared_ptr<Channel>(channel->second));
    } else if (const auto found = links_.find(token); found != links_.end()) {
      const std::shared_ptr<Link> link = found->second;
      if ((event.events & EPOLLOUT) != 0) flush(link);
      if ((event.events & ~EPOLLOUT) != 0 && link->fd >= 0) receive_all(link);
    }
  }
  expire_all();
  ports_->release_owed();
  return accepted;
}

void ConnectionManager::wake() {
  const uint64_t one = 1;
  static_cast<void>(!write_own(wake_fd_, &one, sizeof(one)));
}

void ConnectionManager::expire_all() {
  const uint64_t at_ns = now_ns();
  while (!deadlines_.empty() && deadlines_.begin()->first <= at_ns) {
    Identifier* id = find(deadlines_.begin()->second);
    deadlines_.erase(deadlines_.begin());
    if (id == nullptr) continue;
    id->deadline_ns = 0;
    expire(*id);
  }
}

void ConnectionManager::set_deadline(Identifier& id, uint64_t delay_ns) {
  if (id.deadline_ns != 0) deadlines_.erase({id.deadline_ns, id.id});
  id.deadline_ns = delay_ns == 0 ? 0 : now_ns() + delay_ns;
  if (id.deadline_ns == 0) return;
  deadlines_.emplace(id.deadline_ns, id.id);
  if (deadlines_.begin()->second == id.id) wake();
}

Identifier* ConnectionManager::find(uint32_t id) {
  const auto found = identifiers_.find(id);
  return found == identifiers_.end() ? nullptr : found->second.get();
}

uint32_t ConnectionManager::free_number() {
  // librdmacm finds events of numbers below 65,536 even where older kernels name nothing else.
  // Numbers rotate, so that a late message does not meet another connection.
  constexpr uint32_t kNumbers = 65535;
  for (uint32_t step = 0; step < kNumbers; ++step) {
    next_number_ = next_number_ % kNumbers + 1;
    if (!identifiers_.contains(next_number_) && !groups_.contains(next_number_)) {
      return next_number_;
    }
  }
  return 0;
}

// ---- links ----

std::shared_ptr<Link> ConnectionManager::add_link(int fd, const PortOwner& peer) {
  auto link = std::make_shared<Link>();
  link->fd = fd;
  link->peer = peer;
  link->token = next_token_++;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = link->token;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
    close_own(fd);
    return nullptr;
  }
  links_.emplace(link->token, link);
  return link;
}

Result<std::shared_ptr<Link>> ConnectionManager::link_to(const PortOwner& owner) {
  for (const auto& entry : links_) {
    if (entry.second->peer == owner) return entry.second;
  }
  const Status unheard(StatusCode::kUnavailable, "soft0: the listener's process does not answer");
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno == EMFILE || errno == ENFILE ? no_descriptors("a socket") : unheard;
  const sockaddr_un address = socket_address(registry_.directory_fd(), owner.slot);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close_own(fd);
    return unheard;
  }
  std::shared_ptr<Link> link = add_link(fd, owner);
  if (link == nullptr) return unheard;
  return link;
}

bool ConnectionManager::accept_links() {
  for (;;) {
    const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (errno != EMFILE && errno != ENFILE) return true;
      static LogRateLimit rate_limit(1, kLinePeriodNs);
      uint64_t suppressed = 0;
      if (rate_limit.allow(now_ns(), &suppressed)) {
        log_warning(
            "soft0: a process that wants to connect has to wait: no descriptor is free; "
            "raise the limit of open files (ulimit -n)");
      }
      return false;
    }
    ucred sender{};
    socklen_t size_bytes = sizeof(sender);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &sender, &size_bytes) != 0 ||
        sender.uid != geteuid()) {
      close_own(fd);
      continue;
    }
    add_link(fd, {});
  }
}

void ConnectionManager::log_unreachable(const Status& why) {
  static std::map<StatusCode, LogRateLimit> rate_limits;
  LogRateLimit& limit = rate_limits.try_emplace(why.code(), 1, kLinePeriodNs).first->second;
  uint64_t suppressed = 0;
  if (limit.allow(now_ns(), &suppressed)) log_warning("{}", why.message());
}

void ConnectionManager::send(const std::shared_ptr<Link>& link, const Message& message) {
  if (link == nullptr || link->fd < 0) return;
  // A peer that reads nothing for so long is stopped or broken.
  constexpr size_t kMaxWaiting = 65536;
  if (link->waiting.size() >= kMaxWaiting) return drop_link(link);
  link->waiting.push_back(message);
  flush(link);
}

void ConnectionManager::flush(const std::shared_ptr<Link>& link) {
  while (!link->waiting.empty()) {
    const Message& message = link->waiting.front();
    const ssize_t sent = ::send(link->fd, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
    // What a dead peer has sent before is read first; then epoll tells of the end.
    if (sent < 0 && errno != EAGAIN && errno != EINTR) link->waiting.clear();
    if (sent < 0) break;
    link->waiting.pop_front();
  }
  epoll_event event{};
  event.events = EPOLLIN | (link->waiting.empty() ? 0u : EPOLLOUT);
  event.data.u64 = link->token;
  epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, link->fd, &event);
}

void ConnectionManager::receive_all(const std::shared_ptr<Link>& link) {
  constexpr int kMaxAtOnce = 64;  // then the others' turn
  for (int i = 0; i < kMaxAtOnce && link->fd >= 0; ++i) {
    std::array<std::byte, sizeof(Message) + 1> packet;
    const ssize_t got = recv(link->fd, packet.data(), packet.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return drop_link(link);
    Message message;
    if (!read_message({packet.data(), static_cast<size_t>(got)}, message)) {
      static LogRateLimit rate_limit(1, kLinePeriodNs);
      uint64_t suppressed = 0;
      if (rate_limit.allow(now_ns(), &suppressed)) {
        log_warning(
            "soft0: a process sent what is no message of a connection manager of this "
            "release; use one build of Verbena for both");
      }
      return drop_link(link);
    }
    receive(link, message);
  }
}

}  // namespace verbena::soft::cm
