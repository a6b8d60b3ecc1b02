#include "src/device/sim/simulation.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "src/base/assert.h"
#include "src/base/log.h"
#include "src/device/sim/fabric.h"
#include "src/device/sim/objects.h"
#include "src/device/sim/recorder.h"
#include "src/device/sim/simulated_node.h"

namespace verbena::sim {

namespace {

constexpr uint64_t kFabricSeed = 0x66616272;
constexpr uint64_t kCoresSeed = 0x636f7265;
// Writes that nobody polls for do not keep a polling loop busy for longer.
constexpr uint32_t kMostRounds = 4096;
// A polling loop that nothing comes to polls again after that long: peers may have gone.
constexpr Time kLongestIdle = 1'000'000 * kPsPerNs;

Time to_time(uint64_t ns) { return ns > kNever / kPsPerNs ? kNever : ns * kPsPerNs; }
Time after(Time when, Time duration) { return duration > kNever - when ? kNever : when + duration; }

}  // namespace

Simulation::Simulation(const Options& options) : options_(options), random_(options.seed) {
  VERBENA_ASSERT(VirtualTime::current() == nullptr);
  set_current(this);
  fabric_ = std::make_unique<Fabric>(*this, options.seed ^ kFabricSeed);
}

Simulation::~Simulation() {
  // They are stuck, or their node crashed: unwinding their stacks would run code that cannot go on.
  // Kept where a search for leaks finds what they hold.
  static thread_local auto* const given_up = new std::vector<boost::context::fiber>;
  for (const auto& fiber : fibers_) {
    if (fiber->state == Fiber::State::kEnded || !fiber->context) continue;
    given_up->push_back(std::move(fiber->context));
  }
  set_current(nullptr);
}

Simulation* Simulation::current() { return static_cast<Simulation*>(VirtualTime::current()); }

Node& Simulation::add_node(const Profile& profile) {
  const auto number = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back(std::make_unique<Node>(*this, profile, number, random_.next()));
  fabric_->add_port(*nodes_.back());
  if (profile.shared_host != 0 && cores_ == nullptr) {
    cores_ = std::make_unique<HostCores>(*this, profile, options_.seed ^ kCoresSeed);
  }
  return *nodes_.back();
}

// ---- the order of things ----

bool Simulation::step(Time limit) {
  if (events_.next_at() > limit || events_.empty()) return false;
  const Event event = events_.pop();
  VERBENA_DEBUG_ASSERT(event.at >= now_);
  now_ = event.at;
  ++events_done_;
  note(now_);
  event.act(event.object, event.argument);
  return true;
}

bool Simulation::run_until(const std::function<bool()>& done, uint64_t deadline_ns) {
  VERBENA_ASSERT(running_ == nullptr);
  const Time limit = to_time(deadline_ns);
  while (!done()) {
    attention_ = false;
    while (!attention_) {
      if (step(limit)) continue;
      if (limit != kNever) now_ = std::max(now_, limit);
      return done();
    }
  }
  return true;
}

namespace {

// What a thread in this state waited for.
StepKind wait_of(Fiber::State state) {
  switch (state) {
    case Fiber::State::kPolling:
      return StepKind::kIdle;
    case Fiber::State::kStanding:
      return StepKind::kBusStall;
    default:
      return StepKind::kAsleep;
  }
}

}  // namespace

void Simulation::resume_event(void* object, uint64_t generation) {
  auto& fiber = *static_cast<Fiber*>(object);
  if (fiber.generation != generation || fiber.node->crashed) return;
  Simulation& simulation = *current();
  if (simulation.cores_ != nullptr && !simulation.cores_->admit(fiber)) return;
  simulation.resume(fiber);
}

// One for each thread, however often it polls in that time.
void Simulation::poll_again_event(void* object, uint64_t) {
  auto& fiber = *static_cast<Fiber*>(object);
  Simulation& simulation = *current();
  fiber.timed = false;
  if (fiber.state != Fiber::State::kPolling || fiber.poll_again_at == kNever) return;
  if (fiber.poll_again_at > simulation.now_) {
    fiber.timed = true;
    simulation.events_.push(fiber.poll_again_at, poll_again_event, &fiber, 0);
  } else {
    simulation.schedule(fiber, simulation.now_);
  }
}

// Most waits end long before their time. Their events would stay until then, and there would be
// several for each connection of a large cluster: so each thread has one.
void Simulation::wait_ends_event(void* object, uint64_t at) {
  auto& fiber = *static_cast<Fiber*>(object);
  if (fiber.wait_timer != at) return;
  fiber.wait_timer = kNever;
  if (fiber.place == nullptr || fiber.wait_ends == kNever) return;
  Simulation& simulation = *current();
  if (fiber.wait_ends > simulation.now_) {
    simulation.start_wait_timer(fiber);
  } else {
    ++fiber.generation;
    simulation.schedule(fiber, simulation.now_);
  }
}

void Simulation::start_wait_timer(Fiber& fiber) {
  if (fiber.wait_ends >= fiber.wait_timer) return;
  fiber.wait_timer = fiber.wait_ends;
  events_.push(fiber.wait_timer, wait_ends_event, &fiber, fiber.wait_timer);
}

void Simulation::resume(Fiber& fiber) {
  VERBENA_DEBUG_ASSERT(running_ == nullptr);
  if (fiber.state == Fiber::State::kWaiting && fiber.place != nullptr) {
    std::vector<Fiber*>& others = waiting_[fiber.place];
    std::erase(others, &fiber);
    fiber.place = nullptr;
    fiber.timed_out = true;
  }
  ++fiber.generation;
  fiber.wake_at = kNever;
  if (recorder_ != nullptr && now_ > fiber.local) {
    recorder_->thread_step(fiber, wait_of(fiber.state), fiber.local, now_);
  }
  fiber.state = Fiber::State::kRunning;
  fiber.local = std::max(fiber.local, now_);
  running_ = &fiber;
  main_counters_ = std::exchange(internal::data_path_counters, fiber.counters);
  before_switch(&main_stack_, fiber.stack);
  fiber.context = std::move(fiber.context).resume();
  after_switch(fiber.stack, main_stack_);
  fiber.counters = std::exchange(internal::data_path_counters, main_counters_);
  running_ = nullptr;
  if (fiber.state == Fiber::State::kEnded) {
    end_stack(fiber.stack);
    if (cores_ != nullptr) cores_->leaves(fiber);
    attention_ = true;
    std::erase(fiber.node->threads, &fiber);
    wake_all_at(&fiber);
  }
}

void Simulation::leave(Fiber::State state) {
  Fiber& fiber = *running_;
  fiber.state = state;
  if (cores_ != nullptr && fiber.node->crashed) cores_->forget(fiber);
  before_switch(&fiber.stack, main_stack_);
  main_ = std::move(main_).resume();
  after_switch(main_stack_, fiber.stack);
}

void Simulation::schedule(Fiber& fiber, Time when) {
  fiber.wake_at = when;
  // What never comes is no event: else it would be the last one, and time would go there.
  if (when == kNever) return;
  events_.push(when, resume_event, &fiber, fiber.generation);
}

void Simulation::wake(Fiber& fiber, Time when) {
  if (fiber.state != Fiber::State::kPolling) {
    // It polls again before it waits: see idle().
    fiber.called = true;
    return;
  }
  if (when < fiber.wake_at) schedule(fiber, when);
}

// ---- CPU time ----

namespace {

// Of words in memory: those of completion queues are charged by the device.
uint64_t polls_of(const internal::DataPathCounters& counters) {
  return counters.empty_polls + counters.leading_polls + counters.marks;
}

}  // namespace

// Each core has one of the threads at work before one of them has a second.
bool Node::shares_core(const Fiber& fiber) const {
  const uint64_t cores = profile.cores * profile.sockets;
  if (threads.size() <= cores || profile.shared_host != 0) return false;
  uint64_t working = 0;
  uint64_t place = 0;
  for (const Fiber* thread : threads) {
    if (thread == &fiber) place = working;
    if (thread->state != Fiber::State::kWaiting && thread->state != Fiber::State::kEnded) ++working;
  }
  return working > cores && (place >= cores || place + cores < working);
}

Time Node::slowed(const Fiber& fiber, Time alone) const {
  return (shares_core(fiber) ? alone * profile.hyperthread_percent / 100 : alone) * slow_percent /
         100;
}

Time Simulation::taken(Fiber& fiber, Time alone) const {
  const Time mean = fiber.node->slowed(fiber, alone);
  const Time range = mean * fiber.node->profile.jitter_percent / 100;
  return range == 0 ? mean : mean - range + fiber.dice.below(2 * range + 1);
}

void Simulation::charge_data_path(Fiber& fiber, uint64_t least_polls) {
  const internal::DataPathCounters& now = internal::data_path_counters;
  const internal::DataPathCounters before = std::exchange(fiber.charged, now);
  const uint64_t messages = now.marks - before.marks;
  const uint64_t lines = messages + now.further_lines - before.further_lines;
  const uint64_t polls = std::max(polls_of(now) - polls_of(before), least_polls);
  const uint64_t bytes =
      now.bytes_copied - before.bytes_copied + now.bytes_cleared - before.bytes_cleared;

  const Profile& profile = fiber.node->profile;
  const Time polled = polls * profile.cpu_poll;
  const Time copied =
      bytes * (fiber.buffers == fiber.socket ? profile.cpu_copy_kib : profile.cpu_remote_copy_kib) /
      1024;
  Time spent = polled + copied;
  const bool reads = now.read_queue_polls != before.read_queue_polls;
  const Received received = reads ? std::exchange(fiber.received, {}) : Received{};
  if (received.messages > 0) {
    const Time line = profile.cpu_device_line +
                      fiber.node->remote_line(fiber.socket, fiber.receives_at, fiber.receives_at);
    spent += received.messages * profile.cpu_message + received.lines * line;
  }
  if (messages > 0) {
    fiber.unseen -= std::min(fiber.unseen, lines);
    fiber.rounds = 0;
    const Time line = profile.cpu_device_line +
                      fiber.node->remote_line(fiber.socket, fiber.written_memory, fiber.written_by);
    spent += messages * profile.cpu_message + lines * line;
  }
  spent = taken(fiber, spent);
  if (recorder_ != nullptr) {
    recorder_->worked(fiber, messages + received.messages > 0, fiber.local,
                      fiber.node->slowed(fiber, polled), fiber.node->slowed(fiber, copied),
                      fiber.local + spent);
  }
  fiber.local += spent;
  fiber.busy += spent;
  const Time moved = hand_over_time(fiber, now.consumed_words - before.consumed_words);
  if (recorder_ != nullptr) {
    recorder_->thread_step(fiber, StepKind::kHandOver, fiber.local, fiber.local + moved);
  }
  fiber.local += moved;
  fiber.busy += moved;
  if (now.hand_overs == before.hand_overs) return;
  fiber.node->publications[fiber.socket] += now.hand_overs - before.hand_overs;
  for (Fiber* other : fiber.node->threads) {
    if (other != &fiber) wake(*other, fiber.local);
  }
}

// The line of a word comes from the core that published it: from another socket as far as threads
// there have published something since this one last came across.
Time Simulation::hand_over_time(Fiber& fiber, uint64_t consumed_words) const {
  if (consumed_words == 0) return 0;
  const Profile& profile = fiber.node->profile;
  uint64_t far = 0;
  for (uint32_t socket = 0; socket < profile.sockets; ++socket) {
    if (socket != fiber.socket) far += fiber.node->publications[socket];
  }
  const uint64_t from_far =
      std::min(consumed_words, far - std::exchange(fiber.far_publications, far));
  return consumed_words * profile.cpu_line_transfer + from_far * profile.cpu_remote_line;
}

// Cores that want one line get it in the order in which they come, each after the one before has
// changed the word.
void Simulation::take_line(const void* address) {
  Simulation& simulation = *current();
  simulation.catch_up();
  Fiber& fiber = *simulation.running_;
  const Profile& profile = fiber.node->profile;
  SharedWord& word = simulation.shared_words_[address];
  Time took = profile.cpu_atomic;
  if (word.owner != nullptr && word.owner != &fiber) {
    took += profile.cpu_line_transfer;
    if (word.owner->socket != fiber.socket) took += profile.cpu_remote_line;
  }
  word = {&fiber, std::max(fiber.local, word.free_at) + took};
  if (simulation.recorder_ != nullptr) {
    simulation.recorder_->thread_step(fiber, StepKind::kHandOver, fiber.local, word.free_at);
  }
  simulation.advance_to(word.free_at);
}

void Simulation::charge(Time cpu) {
  if (running_ == nullptr) return;
  charge_data_path(*running_);
  cpu = taken(*running_, cpu);
  if (recorder_ != nullptr) {
    recorder_->charged(*running_, running_->local, running_->local + cpu);
  }
  running_->local += cpu;
  running_->busy += cpu;
}

void Simulation::catch_up() {
  if (running_ == nullptr) return;
  Fiber& fiber = *running_;
  charge_data_path(fiber);
  while (events_.next_at() <= fiber.local) {
    if (events_.front().act == resume_event) {
      // Another thread's turn: it needs this one's place on the processor.
      ++fiber.generation;
      schedule(fiber, fiber.local);
      leave(Fiber::State::kReady);
      break;
    }
    running_ = nullptr;
    step(fiber.local);
    running_ = &fiber;
    // Its own node has crashed: nobody comes back to it.
    if (fiber.node->crashed) leave(Fiber::State::kReady);
  }
  now_ = fiber.local;
  if (cores_ != nullptr && cores_->slice_is_over(fiber)) {
    ++fiber.generation;
    cores_->give_way(fiber);
    leave(Fiber::State::kReady);
  }
}

void Simulation::advance_to(Time when) {
  if (running_ == nullptr) return;
  if (when > running_->local) {
    running_->busy += when - running_->local;
    running_->local = when;
  }
}

void Simulation::stand_still() {
  VERBENA_ASSERT(running_ != nullptr);
  Fiber& fiber = *running_;
  const Time begun = fiber.local;
  ++fiber.generation;
  if (cores_ != nullptr) cores_->stands(fiber);
  leave(Fiber::State::kStanding);
  fiber.busy += fiber.local - begun;
}

// ---- VirtualTime ----

uint64_t Simulation::now_ns() {
  if (running_ == nullptr) return now_ / kPsPerNs;
  charge_data_path(*running_);
  return running_->local / kPsPerNs;
}

uint64_t Simulation::cycles() {
  if (running_ == nullptr) return 0;
  charge_data_path(*running_);
  return running_->busy / running_->node->profile.cpu_cycle;
}

void Simulation::sleep_ns(uint64_t duration_ns) {
  VERBENA_ASSERT(running_ != nullptr);
  Fiber& fiber = *running_;
  charge_data_path(fiber);
  ++fiber.generation;
  if (cores_ != nullptr) cores_->leaves(fiber);
  schedule(fiber, after(fiber.local, to_time(duration_ns)));
  leave(Fiber::State::kReady);
}

void Simulation::idle(uint64_t due_ns) {
  VERBENA_ASSERT(running_ != nullptr);
  Fiber& fiber = *running_;
  charge_data_path(fiber, /*least_polls=*/1);  // a round of a loop takes time whatever is in it
  catch_up();
  // Something came since this thread polled there: it polls again at once.
  if (std::exchange(fiber.called, false)) return;
  if (fiber.unseen > 0 && ++fiber.rounds < kMostRounds) return;
  fiber.unseen = 0;
  fiber.rounds = 0;
  const Time due = std::max(to_time(due_ns), fiber.local);
  const Time longest = fiber.local + kLongestIdle;
  ++fiber.generation;
  if (cores_ != nullptr) cores_->polls(fiber);
  if (due < longest) {
    fiber.poll_again_at = kNever;
    schedule(fiber, due);
  } else {
    fiber.poll_again_at = fiber.wake_at = longest;
    if (!std::exchange(fiber.timed, true)) events_.push(longest, poll_again_event, &fiber, 0);
  }
  leave(Fiber::State::kPolling);
  fiber.called = false;
}

void Simulation::wake_pollers() {
  for (const auto& fiber : fibers_) wake(*fiber, now_);
}

bool Simulation::wait_at(const void* place, uint64_t deadline_ns) {
  VERBENA_ASSERT(running_ != nullptr);
  Fiber& fiber = *running_;
  charge_data_path(fiber);
  waiting_[place].push_back(&fiber);
  fiber.place = place;
  fiber.timed_out = false;
  ++fiber.generation;
  fiber.wait_ends =
      deadline_ns == UINT64_MAX ? kNever : std::max(to_time(deadline_ns), fiber.local);
  start_wait_timer(fiber);
  if (cores_ != nullptr) cores_->leaves(fiber);
  leave(Fiber::State::kWaiting);
  return !fiber.timed_out;
}

void Simulation::wake_all_at(const void* place) {
  attention_ = true;
  wake_waiting_at(place);
}

void Simulation::wake_waiting_at(const void* place) {
  const auto found = waiting_.find(place);
  if (found == waiting_.end()) return;
  const Time when = running_ != nullptr ? std::max(now_, running_->local) : now_;
  for (Fiber* fiber : found->second) {
    fiber->place = nullptr;
    ++fiber->generation;
    schedule(*fiber, when);
  }
  waiting_.erase(found);
}

void Simulation::wake_all_waiting() {
  for (const auto& fiber : fibers_) {
    if (fiber->place != nullptr) wake_waiting_at(fiber->place);
  }
}

std::shared_ptr<const bool> Simulation::taken_for_dead() {
  const Node* const node = here();
  return node != nullptr ? node->taken_for_dead : nullptr;
}

void Simulation::message_taken(uint64_t posted_ns, uint64_t taken_ns, const void* request,
                               const void* response) {
  if (recorder_ == nullptr || running_ == nullptr) return;
  recorder_->message_taken(*running_, {.posted_ns = posted_ns,
                                       .taken_ns = taken_ns,
                                       .taken = running_->local,
                                       .request = reinterpret_cast<uint64_t>(request),
                                       .response = reinterpret_cast<uint64_t>(response)});
}

// ---- sockets ----

uint32_t Simulation::sockets() {
  const Node* const node = here();
  return node != nullptr ? static_cast<uint32_t>(node->profile.sockets) : 1;
}

int Simulation::socket_of_device(const void* context) {
  const auto& device = *static_cast<const ibv_context*>(context);
  if (!std::string_view(device.device->name).starts_with(kDevicePrefix)) return -1;
  return static_cast<int>(reinterpret_cast<const Context&>(device).socket);
}

void Simulation::run_on_socket(uint32_t socket) {
  if (running_ == nullptr) return;
  VERBENA_ASSERT(socket < running_->node->profile.sockets);
  charge_data_path(*running_);
  running_->socket = running_->buffers = socket;
}

void Simulation::place_on_socket(const void* memory, size_t bytes, uint32_t socket) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  places_[begin] = {begin + bytes, socket};
}

int Simulation::socket_of_memory(const void* memory, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  auto place = places_.upper_bound(begin);
  if (place == places_.begin()) return -1;
  --place;
  return begin + bytes <= place->second.end ? static_cast<int>(place->second.socket) : -1;
}

void Simulation::forget_place(const void* memory, size_t bytes) {
  const auto place = places_.find(reinterpret_cast<uintptr_t>(memory));
  if (place != places_.end() && place->first + bytes >= place->second.end) places_.erase(place);
}

void* Simulation::start_thread(const std::string& name, std::function<void()> body) {
  Node* const node = here();
  VERBENA_ASSERT(node != nullptr);
  fibers_.push_back(std::make_unique<Fiber>());
  Fiber& fiber = *fibers_.back();
  fiber.node = node;
  fiber.number = static_cast<uint32_t>(node->threads.size());
  fiber.socket = static_cast<uint32_t>(fiber.number / node->profile.cores % node->profile.sockets);
  fiber.buffers = fiber.socket;
  fiber.counters.take_line = take_line;
  fiber.name = name;
  fiber.dice = Random(random_.next());
  fiber.body = std::move(body);
  fiber.local = running_ != nullptr ? running_->local : now_;
  boost::context::fixedsize_stack allocator(options_.stack_bytes);
  const boost::context::stack_context stack = allocator.allocate();
  fiber.stack.bottom = static_cast<std::byte*>(stack.sp) - stack.size;
  fiber.stack.size_bytes = stack.size;
  fiber.context = boost::context::fiber(std::allocator_arg,
                                        boost::context::preallocated(stack.sp, stack.size, stack),
                                        allocator, [this, &fiber](boost::context::fiber&& main) {
                                          after_switch(main_stack_, fiber.stack);
                                          main_ = std::move(main);
                                          fiber.body();
                                          fiber.body = nullptr;
                                          charge_data_path(fiber);
                                          fiber.state = Fiber::State::kEnded;
                                          before_switch(nullptr, main_stack_);
                                          return std::move(main_);
                                        });
  node->threads.push_back(&fiber);
  schedule(fiber, fiber.local);
  return &fiber;
}

void Simulation::join_thread(void* thread) {
  auto& fiber = *static_cast<Fiber*>(thread);
  if (running_ != nullptr) {
    while (fiber.state != Fiber::State::kEnded && !fiber.node->crashed) {
      wait_at(&fiber, UINT64_MAX);
    }
    return;
  }
  if (!run_until([&fiber] { return fiber.state == Fiber::State::kEnded || fiber.node->crashed; })) {
    log_error("the simulated thread '{}' of node {} waits for ever", fiber.name,
              fiber.node->number);
  }
}

}  // namespace verbena::sim
