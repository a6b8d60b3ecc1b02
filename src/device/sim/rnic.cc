#include "src/device/sim/rnic.h"

#include <algorithm>
#include <utility>

#include "src/base/assert.h"
#include "src/device/sim/datagrams.h"
#include "src/device/sim/opcode.h"
#include "src/device/sim/recorder.h"
#include "src/device/sim/simulated_node.h"

namespace verbena::sim {

namespace {

// A key: the region's place, and how often that place was used, so that a key outlives nothing.
constexpr uint32_t kGenerationBits = 8;
constexpr uint64_t kTranslationLineBytes = 64;
constexpr uint64_t kWqeBytes = 64;

// WQEs that come along with their doorbells: those that the chip has room for, and as many as the
// bus carries on its way. Posted writes have credits for these; else no bus would reach its rate.
// At least the one that is being handled: else none would ever come through.
uint64_t room_for_wqes(const Profile& profile) {
  const Time each = std::max<Time>(profile.bus_time(kWqeBytes, profile.pcie_down_kib), 1);
  return std::max<uint64_t>(profile.blueflame_queue + (profile.pcie_one_way + each - 1) / each, 1);
}

}  // namespace

Rnic::Rnic(Simulation& simulation, Node& node, uint64_t seed)
    : simulation_(simulation), node_(node), dice_(seed), wqe_room_(room_for_wqes(node.profile)) {
  const Profile& profile = node.profile;
  contexts_.configure(profile.context_cache_entries);
  read_states_.configure(profile.read_state_queue_pairs, 0);
  translations_.configure(profile.translation_entries / kTranslationsOfLine, 2);
  reads_.configure(profile.pcie_reads_at_once);
}

RnicBusy Rnic::busy() const {
  const Time now = simulation_.now();
  RnicBusy busy{.bus_down = bus_down_.busy(now),
                .bus_up = bus_up_.busy(now),
                .reads = reads_.busy(now),
                .doorbells = doorbells_busy_,
                .sending = sending_busy_,
                .receiving = receiving_.busy(now),
                .atomics = atomics_.busy(now),
                .queue_pairs = {}};
  busy.queue_pairs.push_back(0);
  for (uint32_t number = 1; number < next_queue_pair_; ++number) {
    const QueuePair& qp = queue_pair(number);
    busy.queue_pairs.push_back(qp.own.paced - (std::max(now, qp.send_after) - now));
  }
  return busy;
}

// ---- objects ----

Region* Rnic::find_region(uint32_t key) {
  const uint32_t place = key >> kGenerationBits;
  if (place >= regions_.size()) return nullptr;
  Region* const region = regions_[place].get();
  return region != nullptr && region->verbs.rkey == key ? region : nullptr;
}

void Rnic::prefetch_region(uint32_t key) const {
  const uint32_t place = key >> kGenerationBits;
  if (place >= regions_.size() || regions_[place] == nullptr) return;
  const auto* const region = reinterpret_cast<const std::byte*>(regions_[place].get());
  __builtin_prefetch(region);
  __builtin_prefetch(region + sizeof(Region) - 1);
}

uint32_t Rnic::add_region(std::unique_ptr<Region> region) {
  uint32_t place = static_cast<uint32_t>(regions_.size());
  if (free_regions_.empty()) {
    regions_.emplace_back();
    generations_.push_back(static_cast<uint32_t>(dice_.below(1 << kGenerationBits)));
  } else {
    place = free_regions_.back();
    free_regions_.pop_back();
    generations_[place] = (generations_[place] + 1) % (1 << kGenerationBits);
  }
  const uint32_t key = place << kGenerationBits | generations_[place];
  region->verbs.lkey = key;
  region->verbs.rkey = key;
  regions_[place] = std::move(region);
  return key;
}

void Rnic::remove_region(uint32_t key) {
  const uint32_t place = key >> kGenerationBits;
  regions_[place].reset();
  free_regions_.push_back(place);
}

QueuePair* Rnic::find_queue_pair(uint32_t number) {
  return number > 0 && number < next_queue_pair_ ? &queue_pair(number) : nullptr;
}

QueuePair& Rnic::add_queue_pair(ibv_qp_type type) {
  if (next_queue_pair_ / kQueuePairsOfBlock == queue_pairs_.size()) {
    queue_pairs_.push_back(std::make_unique<QueuePair[]>(kQueuePairsOfBlock));
  }
  const uint32_t number = next_queue_pair_++;
  QueuePair& qp = queue_pair(number);
  qp.node = &node_;
  qp.verbs.qp_type = type;
  qp.wqes.configure(wqe_pool_, qp.sends_datagrams() ? sizeof(DatagramAddress) : 0);
  qp.verbs.qp_num = number;
  return qp;
}

void Rnic::remove_queue_pair(QueuePair& qp) {
  reset(qp);
  // The object stays, since packets on their way may name it; what it held goes.
  if (qp.own_receives == nullptr) return;
  qp.own_receives->receives.reset();
  qp.own_receives->sges.reset();
}

void Rnic::reset(QueuePair& qp) {
  ++qp.generation;
  qp.verbs.state = IBV_QPS_RESET;
  qp.wqes.clear();
  kept_wqes_ -= qp.kept_wqes();
  qp.posted = qp.reclaimed = qp.announced = qp.handled = qp.fetched = qp.retired = 0;
  qp.payload_message = qp.send_message = 0;
  qp.payload_packet = qp.payload_outstanding = qp.payload_ready = qp.send_packet = 0;
  qp.pacing = qp.queued = false;
  qp.turn_sent = 0;
  qp.waiting = 0;
  ++qp.fetch_epoch;
  qp.expected_message = 0;
  qp.expected_packet = 0;
  qp.starved = false;
  qp.requester.reset();
  qp.responder = {};
  if (std::exchange(qp.filling, false) && qp.srq() != nullptr) {
    qp.srq()->queue.release(qp.current_receive);
  }
  if (qp.own_receives != nullptr) reset_receives(*qp.own_receives);
  if (qp.send_cq() != nullptr) forget_completions(*qp.send_cq(), qp);
  if (qp.recv_cq() != nullptr) forget_completions(*qp.recv_cq(), qp);
}

void Rnic::reset_receives(ReceiveQueue& receives) {
  receives.posted = receives.recorded = receives.known = receives.fetched = receives.consumed = 0;
  receives.fetching = receives.found_none = false;
  ++receives.epoch;
  receives.release_all();
  for (Packet* packet : receives.starving) simulation_.fabric().free(packet);
  receives.starving.clear();
}

// ---- what work costs ----

Time Rnic::context_cost(QueuePair& qp, Time* delay) {
  return contexts_.touch(qp.context, dice_) ? 0 : state_missed(1, delay);
}

// Where the state is missed: that of the queue and of its completions, and then the WQE, which
// was fetched ahead and lost.
Time Rnic::receive_cost(QueuePair& qp, Time* delay) {
  const bool hit = contexts_.touch(qp.receive_queue().state, dice_);
  return node_.profile.rx_receive + (hit ? 0 : state_missed(2, delay));
}

Time Rnic::state_missed(uint64_t fetches, Time* delay) {
  const Time took = fetches * node_.profile.context_miss;
  *delay += took;
  return missed(took / node_.profile.context_misses_at_once);
}

// The chip has so many WQEs until they are completed. Of more it lacks a share, whichever these
// are, and reads them once more where a response is placed by one, or where one asks for a
// completion. That is the work of the units that send, so what is to be sent next waits for it.
void Rnic::read_lost_wqes(QueuePair& qp, const Packet& packet, Time* delay) {
  const Profile& profile = node_.profile;
  if (profile.wqe_cache_entries == 0 || kept_wqes_ <= profile.wqe_cache_entries) return;
  uint64_t needed = 0;
  if (packet.kind == PacketKind::kReadResponse || packet.kind == PacketKind::kAtomicResponse) {
    needed = packet.index == 0 && packet.message >= qp.retired ? 1 : 0;
  } else if (packet.kind == PacketKind::kAck) {
    const uint64_t end = std::min(packet.message, qp.requester.sent_ever);
    uint64_t& next = qp.requester.looked_up;
    for (next = std::max(next, qp.retired); next < end; ++next) {
      const Wqe& wqe = qp.wqe(next);
      needed += wqe.signaled && !asks_for_data(wqe.opcode) ? 1 : 0;
    }
  }
  Time longest = 0;
  for (; needed > 0; --needed) {
    if (dice_.below(kept_wqes_) < profile.wqe_cache_entries) continue;
    const Time took = bus_read(kWqeBytes) - simulation_.now();
    longest = std::max(longest, took);
    units_.serve(simulation_.now(), profile.pcie_read / profile.wqe_misses_at_once);
  }
  *delay += longest;
}

Time Rnic::missed(Time cost) {
  if (simulation_.recorder() != nullptr) simulation_.recorder()->missed(cost);
  return cost;
}

namespace {

Time bus_time(const Profile& profile, uint64_t bytes, Time kib, bool far) {
  return std::max(profile.bus_time(bytes, kib),
                  bytes * (far ? profile.dma_remote_kib : profile.dma_kib) / 1024);
}

}  // namespace

// The table of translations is in memory of the card, or in that of the host: then a fetch is a DMA
// read as any other. It brings a line of the table, which is what the cache has.
void Rnic::translate(Region& region, uint64_t address, uint64_t bytes, Translations* missing) {
  const Profile& profile = node_.profile;
  if (region.verbs.length == 0 || bytes == 0) return;
  const Time read =
      profile.pcie_read + bus_time(profile, kTranslationLineBytes, profile.pcie_down_kib, false);
  // Counted from where the region begins: where the host has put it changes nothing.
  const uint64_t offset = address - region.iova;
  const uint64_t covered = profile.page_bytes * kTranslationsOfLine;
  for (uint64_t line = offset / covered; line <= (offset + bytes - 1) / covered; ++line) {
    if (translations_.touch(region.translations(line), 1, dice_)) continue;
    if (profile.translation_miss > 0) {
      missing->alone += profile.translation_miss;
    } else {
      missing->alone += read;
      missing->there = std::max(missing->there, bus_read(kTranslationLineBytes));
    }
  }
}

void Rnic::translate(const ibv_sge* sge, uint32_t count, uint64_t offset, uint64_t bytes,
                     Translations* missing) {
  for (uint32_t i = 0; i < count && bytes > 0; ++i, ++sge) {
    if (offset >= sge->length) {
      offset -= sge->length;
      continue;
    }
    const uint64_t part = std::min<uint64_t>(bytes, sge->length - offset);
    Region* const region = find_region(sge->lkey);
    if (region != nullptr && region->covers(sge->addr + offset, part)) {
      translate(*region, sge->addr + offset, part, missing);
    }
    bytes -= part;
    offset = 0;
  }
}

// One after the other, in the order of its packets. A fetch begins when the one before has ended,
// so what waits on the bus now must not be waited for once more by each of those behind it.
Time Rnic::translated(QueuePair& qp, const Translations& missing) {
  const Time now = simulation_.now();
  qp.own.translated_at =
      std::max(std::max(qp.own.translated_at, now) + missing.alone, missing.there);
  return qp.own.translated_at - now;
}

Time Rnic::bus_read(uint64_t bytes, bool far) {
  const Profile& profile = node_.profile;
  const Time moving = bus_time(profile, bytes, profile.pcie_down_kib, far);
  const Time latency = profile.pcie_read + (far ? profile.dma_remote : 0);
  const Time by_bus = bus_down_.serve(simulation_.now(), moving) + latency;
  return reads_.serve(simulation_.now(), moving + latency, by_bus);
}

Time Rnic::bus_write(uint64_t bytes, bool far) {
  const Profile& profile = node_.profile;
  Server& bus = profile.pcie_shared != 0 ? bus_down_ : bus_up_;
  return bus.serve(simulation_.now(), bus_time(profile, bytes, profile.pcie_up_kib, far)) +
         profile.pcie_one_way + (far ? profile.dma_remote : 0);
}

bool Rnic::is_far(const QueuePair& qp, const ibv_sge* sges, uint32_t count) {
  const Region* const region = count > 0 ? find_region(sges[0].lkey) : nullptr;
  return region != nullptr && region->socket != qp.own.chosen.socket;
}

Time Rnic::bus_up_free_at() const {
  return (node_.profile.pcie_shared != 0 ? bus_down_ : bus_up_).free_at();
}

}  // namespace verbena::sim
