#include "src/bench/baselines/records.h"

#include <array>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/result/statistics.h"
#include "src/memory/arena.h"
#include "verbena/apps/shuffle.h"

namespace verbena::bench::baselines {
namespace {

constexpr int64_t kRecordsTimeoutNs = 20'000'000'000;
// Their partitions are computed before they are sent: few enough to stay in the first cache.
constexpr uint32_t kRecordsAtOnce = 64;
constexpr uint64_t kSourceRecords = kRecordSourceBytes / kRecordBytes;
static_assert(kRecordPlaces * kRecordPlaceBytes <= kSharedBytes);

uint32_t place_of(const char* record) {
  return partition_of(shuffle_hash({record, sizeof(uint64_t)}), kRecordPlaces);
}

void fill_source(char* source) {
  for (uint64_t i = 0; i < kSourceRecords; ++i) {
    std::memset(source + i * kRecordBytes, 'r', kRecordBytes);
    std::memcpy(source + i * kRecordBytes, &i, sizeof(i));
  }
}

// The median bandwidth of `move_all`, which moves the whole source.
template <typename MoveAll>
Result<double> bandwidth_of(uint64_t slices, const MoveAll& move_all) {
  VERBENA_RETURN_IF_ERROR(move_all());  // to warm up
  std::vector<double> bandwidths;
  for (uint64_t i = 0; i < slices; ++i) {
    const uint64_t begun_ns = now_ns();
    VERBENA_RETURN_IF_ERROR(move_all());
    bandwidths.push_back(static_cast<double>(kRecordSourceBytes) /
                         static_cast<double>(now_ns() - begun_ns) * 1e9);
  }
  return median(bandwidths);
}

Status shuffle_all(ShuffleSender& sender, const char* source) {
  std::array<uint32_t, kRecordsAtOnce> places;
  static_assert(kSourceRecords % kRecordsAtOnce == 0);
  for (uint64_t at = 0; at < kRecordSourceBytes; at += kRecordsAtOnce * kRecordBytes) {
    for (uint32_t i = 0; i < kRecordsAtOnce; ++i)
      places[i] = place_of(source + at + i * kRecordBytes);
    VERBENA_RETURN_IF_ERROR(
        sender.put_each(places, {source + at, uint64_t{kRecordsAtOnce} * kRecordBytes}));
  }
  return sender.flush() ? Status::ok_status() : sender.status();
}

Status send_records(Side& side, std::vector<ControlConnection> controls, uint64_t slices) {
  VERBENA_ASSIGN_OR_RETURN(const Device device, Device::open("soft0"));
  VERBENA_ASSIGN_OR_RETURN(const ProtectionDomain domain, ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(
      const RegisteredArena source,
      RegisteredArena::create(domain, kRecordSourceBytes, IBV_ACCESS_LOCAL_WRITE));
  fill_source(source.data());
  VERBENA_ASSIGN_OR_RETURN(
      const auto sender,
      open_shuffle_sender(device, domain, std::move(controls),
                          {.batch = kRecordsOfWrite, .typical_record_bytes = kRecordBytes}));
  VERBENA_ASSIGN_OR_RETURN(const double bandwidth, bandwidth_of(slices, [&] {
                             return shuffle_all(*sender, source.data());
                           }));
  side.set_result(bandwidth);
  return sender->finish();
}

Status receive_records(std::vector<ControlConnection> controls) {
  VERBENA_ASSIGN_OR_RETURN(const Device device, Device::open("soft0"));
  VERBENA_ASSIGN_OR_RETURN(const ProtectionDomain domain, ProtectionDomain::create(device));
  std::vector<std::unique_ptr<ShuffleReceiver>> receivers;
  for (uint32_t i = 0; i < kRecordPlaces; ++i) {
    VERBENA_ASSIGN_OR_RETURN(receivers.emplace_back(),
                             ShuffleReceiver::expose(device, domain,
                                                     {.receiver = i,
                                                      .receivers = kRecordPlaces,
                                                      .record_bytes = kRecordBytes,
                                                      .buffer_bytes = kRecordPlaceBytes}));
  }
  for (uint32_t i = 0; i < kRecordPlaces; ++i) {
    VERBENA_RETURN_IF_ERROR(receivers[i]->accept(std::move(controls[i])));
  }
  uint64_t sum = 0;
  for (uint32_t finished = 0; finished < kRecordPlaces;) {
    finished = 0;
    for (const auto& receiver : receivers) {
      VERBENA_ASSIGN_OR_RETURN(const ShuffleSpan span, receiver->next());
      const std::span<const char> bytes = span.bytes();
      for (uint64_t at = 0; at < bytes.size(); at += kRecordBytes) {
        uint64_t key;
        std::memcpy(&key, bytes.data() + at, sizeof(key));
        sum += key;
      }
      receiver->release(span);
      if (receiver->finished()) ++finished;
    }
  }
  // A multiple of the sum of all keys: each record came.
  constexpr uint64_t kSumOfKeys = kSourceRecords * (kSourceRecords - 1) / 2;
  if (sum % kSumOfKeys == 0) return Status::ok_status();
  return {StatusCode::kProtocolViolation, "the shuffle has not carried each record once"};
}

}  // namespace

Result<double> shuffle_bandwidth(const CpuPair& cpus, uint64_t slices) {
  const JobSecret secret = JobSecret::random();
  std::vector<ControlListener> listeners;
  for (uint32_t i = 0; i < kRecordPlaces; ++i) {
    VERBENA_ASSIGN_OR_RETURN(ControlListener listener,
                             ControlListener::listen("127.0.0.1", 0, secret));
    listeners.push_back(std::move(listener));
  }
  return run_pair(cpus, [&](Side& side) -> Status {
    std::vector<ControlConnection> controls;
    for (ControlListener& listener : listeners) {
      VERBENA_ASSIGN_OR_RETURN(
          ControlConnection control,
          side.number() == 0
              ? ControlConnection::connect("127.0.0.1", listener.port(), secret, kRecordsTimeoutNs)
              : listener.accept(kRecordsTimeoutNs));
      controls.push_back(std::move(control));
    }
    return side.number() == 0 ? send_records(side, std::move(controls), slices)
                              : receive_records(std::move(controls));
  });
}

Result<double> record_copy_bandwidth(const CpuPair& cpus, uint64_t slices) {
  return run_pair(cpus, [slices](Side& side) -> Status {
    if (side.number() == 1) return Status::ok_status();
    const std::unique_ptr<char[]> source(new char[kRecordSourceBytes]);
    fill_source(source.get());
    char* const places = side.board().memory[1];
    std::array<uint64_t, kRecordPlaces> used = {};
    VERBENA_ASSIGN_OR_RETURN(const double bandwidth, bandwidth_of(slices, [&]() -> Status {
                               for (uint64_t at = 0; at < kRecordSourceBytes; at += kRecordBytes) {
                                 const uint32_t place = place_of(source.get() + at);
                                 std::memcpy(places + place * kRecordPlaceBytes + used[place],
                                             source.get() + at, kRecordBytes);
                                 // Copies whose result nobody reads must not be left out.
                                 asm volatile("" ::: "memory");
                                 used[place] = (used[place] + kRecordBytes) % kRecordPlaceBytes;
                               }
                               return Status::ok_status();
                             }));
    side.set_result(bandwidth);
    return Status::ok_status();
  });
}

}  // namespace verbena::bench::baselines
