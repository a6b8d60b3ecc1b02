// Completion channels and completion queues.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "src/device/soft/control.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/of_process.h"

namespace verbena::soft {
namespace {

std::atomic<uint32_t> next_queue{0};

// Which queue an event's cookie means, so that a late event of a destroyed queue is dropped.
struct LiveQueues {
  std::mutex mutex;
  std::unordered_map<uint64_t, Cq*> by_cookie;
};
LiveQueues& live_queues() { return of_process<LiveQueues>(); }

// Takes the events of queues that are gone out of the channel, which would wake those who wait for
// it though there is nothing for them. What a sender rings late is dropped by get_cq_event().
void drop_waiting_events(const Channel& channel) {
  LiveQueues& live = live_queues();
  const std::lock_guard guard(live.mutex);
  // Another open file, since O_NONBLOCK of the channel's descriptor is the program's to set.
  const int take_fd = open(fmt::format("/proc/self/fd/{}", channel.read_fd).c_str(),
                           O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (take_fd < 0) return;
  std::vector<uint64_t> kept;
  uint64_t cookie = 0;
  while (read(take_fd, &cookie, sizeof(cookie)) == sizeof(cookie)) {
    if (live.by_cookie.contains(cookie)) kept.push_back(cookie);
  }
  close(take_fd);
  // There is room: so much was there a moment ago, and a queue rings once until it is armed again.
  for (const uint64_t one : kept) {
    [[maybe_unused]] const ssize_t written = write(channel.write_fd, &one, sizeof(one));
  }
}

}  // namespace

void allow_peers_to_copy() { prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); }

ibv_comp_channel* create_comp_channel(ibv_context* context) {
  if (check_valid_context(context) != 0) return nullptr;
  int event_pipe[2];
  if (pipe2(event_pipe, O_CLOEXEC) != 0) {
    fail(errno,
         fmt::format("soft0: cannot make a pipe: {}; raise the limit of open files (ulimit -n)",
                     strerror(errno)));
    return nullptr;
  }
  fcntl(event_pipe[1], F_SETFL, O_NONBLOCK);
  auto* channel = new Channel;
  channel->verbs.context = context;
  channel->verbs.fd = event_pipe[0];
  channel->read_fd = event_pipe[0];
  channel->write_fd = event_pipe[1];
  channel->id = pipe_id(event_pipe[0]);
  as_context(context).users.fetch_add(1);
  make_valid(*channel, context);
  return &channel->verbs;
}

int destroy_comp_channel(ibv_comp_channel* verbs) {
  if (const int error = check_valid<Channel>(verbs); error != 0) return error;
  Channel& channel = as_channel(verbs);
  if (channel.users.load() != 0) {
    return fail(EBUSY,
                "soft0: the completion channel still has completion queues; destroy them first");
  }
  close(channel.read_fd);
  close(channel.write_fd);
  end_use(as_context(verbs->context).users);
  retire(&channel);
  return 0;
}

ibv_cq* create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                  int comp_vector) {
  if (check_valid_context(context) != 0) return nullptr;
  if (channel != nullptr && check_valid<Channel>(channel) != 0) return nullptr;
  if (channel != nullptr && channel->context != context) {
    fail(EINVAL, "soft0: the completion channel belongs to another context");
    return nullptr;
  }
  if (cqe < 1 || static_cast<uint32_t>(cqe) > kMaxCqes || comp_vector != 0) {
    fail(EINVAL, fmt::format("soft0: a completion queue of {} CQEs on vector {}: possible are 1 to "
                             "{} CQEs, vector 0",
                             cqe, comp_vector, kMaxCqes));
    return nullptr;
  }
  Rnic& rnic = *as_context(context).rnic;
  if (!count_in(rnic.completion_queue_count, kMaxCompletionQueues, Cq::kName)) return nullptr;
  Result<void*> memory = rnic.allocate_completion_queue();
  if (!memory.ok()) {
    end_use(rnic.completion_queue_count);
    fail(memory.status());
    return nullptr;
  }
  auto* cq = new Cq;
  cq->verbs.context = context;
  cq->verbs.channel = channel;
  cq->verbs.cq_context = cq_context;
  cq->verbs.cqe = cqe;
  cq->rnic = &rnic;
  cq->id = next_queue.fetch_add(1, std::memory_order_relaxed) + 1;
  cq->verbs.handle = cq->id;
  cq->completions.configure(static_cast<uint32_t>(cqe));
  cq->shared = static_cast<CqShared*>(*memory);
  cq->shared->cookie = cq->id;
  if (channel != nullptr) {
    cq->channel = &as_channel(channel);
    cq->channel->users.fetch_add(1);
    cq->shared->has_channel = 1;
    cq->shared->channel_fd = cq->channel->read_fd;
    cq->shared->channel_id = cq->channel->id;
  }
  as_context(context).users.fetch_add(1);
  make_valid(*cq, context);
  LiveQueues& live = live_queues();
  std::lock_guard guard(live.mutex);
  live.by_cookie[cq->id] = cq;
  return &cq->verbs;
}

int destroy_cq(ibv_cq* verbs) {
  if (const int error = check_valid<Cq>(verbs); error != 0) return error;
  Cq& cq = as_cq(verbs);
  if (cq.users.load() != 0) {
    return fail(EBUSY, "soft0: the completion queue still has queue pairs; destroy them first");
  }
  {
    LiveQueues& live = live_queues();
    std::lock_guard guard(live.mutex);
    live.by_cookie.erase(cq.id);
  }
  cq.completion_events.settle();
  if (cq.channel != nullptr) {
    drop_waiting_events(*cq.channel);
    end_use(cq.channel->users);
  }
  if (cq.parent_domain != nullptr) end_use(cq.parent_domain->users);
  drop_events_of(verbs->context, &cq);
  cq.async_events.settle();
  cq.rnic->free_completion_queue(cq.shared);
  end_use(cq.rnic->completion_queue_count);
  end_use(as_context(verbs->context).users);
  retire(&cq, [](Cq& shell) {
    shell.overrun = true;
    shell.verbs.cqe = 0;  // too few for any size that it is to have instead
    refuse_polls(shell.extended);
  });
  return 0;
}

void ring_abandoned_channels(const Rnic& rnic) {
  LiveQueues& live = live_queues();
  std::lock_guard guard(live.mutex);
  for (const auto& [id, cq] : live.by_cookie) {
    if (cq->rnic == &rnic) ring_abandoned_channel(*cq);
  }
}

int get_cq_event(ibv_comp_channel* from, ibv_cq** verbs, void** cq_context) {
  if (check_valid<Channel>(from) != 0) return -1;
  const Channel& channel = as_channel(from);
  for (;;) {
    uint64_t cookie = 0;
    const ssize_t got = read(channel.read_fd, &cookie, sizeof(cookie));
    if (got != sizeof(cookie)) return -1;
    LiveQueues& live = live_queues();
    std::lock_guard guard(live.mutex);
    auto found = live.by_cookie.find(cookie);
    if (found == live.by_cookie.end() || found->second->channel != &channel) {
      // An event of a queue that is gone. Go on only if the next read may not block unasked.
      pollfd more{.fd = channel.read_fd, .events = POLLIN, .revents = 0};
      if ((fcntl(channel.read_fd, F_GETFL) & O_NONBLOCK) == 0 || poll(&more, 1, 0) > 0) continue;
      errno = EAGAIN;
      return -1;
    }
    Cq& cq = *found->second;
    cq.completion_events.deliver();
    *verbs = &cq.verbs;
    *cq_context = cq.verbs.cq_context;
    return 0;
  }
}

void ack_cq_events(ibv_cq* verbs, unsigned count) {
  if (count == 0 || check_valid<Cq>(verbs) != 0) return;
  as_cq(verbs).completion_events.acknowledge(count);
}

}  // namespace verbena::soft
