// The entry of libverbena.so, and what only it needs.
#include "src/device/soft/soft_rnic.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "src/base/log.h"
#include "src/base/runtime.h"
#include "src/device/soft/cm/channel_calls.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/layers/layers.h"
#include "src/device/soft/observe/watch.h"
#include "src/device/soft/of_process.h"
#include "src/device/soft/pages/page_share.h"
#include "src/device/soft/poll_pause.h"
#include "src/device/soft/presentation.h"
#include "src/device/soft/rnic.h"
#include "src/device/soft/soft.h"
#include "src/device/soft/sysfs_tree.h"
#include "src/device/soft/ud.h"

namespace verbena::soft {

namespace {

struct ControlLines : RareLines {};

}  // namespace

void report_refusal(const char* verb) {
  const int error = errno;
  const char* reason = control().last_error();
  if (*reason == '\0') {
    log_info("{}: {}; soft0 gave no other reason", verb, strerror(error));
  } else if (log_enabled(LogLevel::kError)) {
    auto& lines = of_process<ControlLines>();
    const std::lock_guard guard(lines.mutex);
    uint64_t suppressed = 0;
    if (lines.rate_limit.allow(now_ns(), &suppressed)) log_error("{}: {}", verb, reason);
  }
  errno = error;
}

namespace {

void pages_released(void* address, size_t length_bytes) {
  if (Rnic* rnic = Rnic::existing()) rnic->pages().forget(address, length_bytes);
}

bool shares_any(const void* address, size_t length_bytes) {
  Rnic* rnic = Rnic::existing();
  return rnic != nullptr && rnic->pages().shares_any(address, length_bytes);
}

int protection_of(const void* address, size_t length_bytes) {
  Rnic* rnic = Rnic::existing();
  return rnic != nullptr ? rnic->pages().protection_of(address, length_bytes) : -1;
}

ibv_device* const* listed_devices() {
  static const auto* const listed = [] {
    auto* made = new std::array<ibv_device*, kMostSoftDevices>;
    for (uint32_t index = 0; index < kMostSoftDevices; ++index) (*made)[index] = device(index);
    return made;
  }();
  return listed->data();
}

__be64 guid_of(const ibv_device* asked) { return node_guid(device_index(asked).value_or(0)); }

}  // namespace
}  // namespace verbena::soft

const verbena::soft::SoftRnic* verbena_soft_rnic(uint32_t /*version: this has the newest only*/) {
  using namespace verbena::soft;  // NOLINT: this function is global
  static const SoftRnic rnic = [] {
    SoftRnic made = {
        .version = kSoftRnicVersion,
        .release = verbena::kVersion,
        .device = device(0),
        .open_device = open_device,
        .close_device = close_device,
        .control = &control(),
        .report_refusal = report_refusal,
        .see_discards = PageShare::set_discards_seen,
        .pages_released = pages_released,
        .shares_any = shares_any,
        .protection_of = protection_of,
        .connection_channels = &cm::channel_calls(),
        .allow_poll_pauses = allow_poll_pauses,
        .sysfs_root = sysfs_root,
        .extended = &extended_control(),
        .datagrams = &datagram_verbs(),
        .watch = &watch(),
        .devices = listed_devices(),
        .device_count = device_count(),
        .device_guid = guid_of,
        .query_gid_entry = query_gid_entry,
    };
    add_layers(made);
    return made;
  }();
  return &rnic;
}
