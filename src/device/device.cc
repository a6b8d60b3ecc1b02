#include "verbena/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "src/base/device_settings.h"
#include "src/base/log.h"
#include "src/device/explain.h"
#include "src/device/fault/injector.h"
#include "src/device/port.h"
#include "src/device/probe.h"
#include "src/device/sim/control.h"
#include "src/device/sim/rnic_profile.h"
#include "src/device/soft_library.h"
#include "src/device/verbs_control.h"
#include "verbena/fault.h"

namespace verbena {

namespace {

// How many software devices are listed. The line about a wrong number comes where one is opened.
uint32_t soft_count() {
  const Result<uint32_t> count = soft_devices_from_environment();
  return count.ok() ? *count : 1;
}

std::string soft_name(uint32_t index) { return fmt::format("{}{}", soft::kDevicePrefix, index); }

// Which of them has this name.
std::optional<uint32_t> soft_index(std::string_view name) {
  const uint32_t count = soft_count();
  for (uint32_t index = 0; index < count; ++index) {
    if (name == soft_name(index)) return index;
  }
  return std::nullopt;
}

// The real devices of this machine; empty where the kernel has no RDMA support.
class HardwareDevices {
 public:
  HardwareDevices() : list_(ibv_get_device_list(&count_)) {
    if (list_ == nullptr) count_ = 0;
    // Where this process itself runs under `verbena run`, libibverbs lists the software devices
    // too. The list stays whole, since it goes back to libibverbs.
    ibv_device** end = std::stable_partition(list_, list_ + count_, [](const ibv_device* device) {
      return !soft_index(device->name).has_value();
    });
    count_ = static_cast<int>(end - list_);
  }
  HardwareDevices(const HardwareDevices&) = delete;
  HardwareDevices& operator=(const HardwareDevices&) = delete;
  ~HardwareDevices() {
    if (list_ != nullptr) ibv_free_device_list(list_);
  }

  ibv_device** begin() const { return list_; }
  ibv_device** end() const { return list_ + count_; }
  ibv_device* find(std::string_view name) const {
    auto found = std::find_if(begin(), end(),
                              [name](const ibv_device* device) { return device->name == name; });
    return found == end() ? nullptr : *found;
  }

 private:
  int count_ = 0;
  ibv_device** list_;
};

uint32_t limit(int64_t value) {
  return static_cast<uint32_t>(std::clamp<int64_t>(value, 0, UINT32_MAX));
}

Status not_found(std::string_view name, const HardwareDevices& hardware) {
  std::string known;
  for (const ibv_device* device : hardware) known += std::string(device->name) + ", ";
  known += soft::kDeviceName;
  for (uint32_t index = 1; index < soft_count(); ++index) known += ", " + soft_name(index);
  return explain_unlisted_device(name, known);
}

template <auto kClose>
int close_faulty(ibv_context* context) {
  fault::Injector::uninstall(context);
  return kClose(context);
}

}  // namespace

Result<Device> Device::from_context(ibv_context* context, Close close, const VerbsControl* control,
                                    std::string_view name, DeviceKind kind) {
  Device device(context, close, control);
  DeviceInfo& info = device.info_;
  info.name = name;
  info.kind = kind;

  ibv_device_attr attributes{};
  const int error = control->query_device(context, &attributes);
  if (error != 0) return verbs_error(*control, fmt::format("cannot query {}", name), error);
  info.max_queue_pairs = limit(attributes.max_qp);
  info.max_queue_pair_wrs = limit(attributes.max_qp_wr);
  info.max_completion_queues = limit(attributes.max_cq);
  info.max_cqes = limit(attributes.max_cqe);
  info.max_shared_receive_queues = limit(attributes.max_srq);
  info.max_shared_receive_queue_wrs = limit(attributes.max_srq_wr);
  info.max_memory_regions = limit(attributes.max_mr);
  info.max_memory_region_bytes = attributes.max_mr_size;
  info.max_sges = limit(attributes.max_sge);
  info.max_outstanding_reads =
      limit(std::min(attributes.max_qp_rd_atom, attributes.max_qp_init_rd_atom));
  info.atomics = attributes.atomic_cap != IBV_ATOMIC_NONE;

  VERBENA_ASSIGN_OR_RETURN(const Port port, choose_port(context, *control));
  info.link_layer = link_layer_name(port.attributes.link_layer);
  info.port_state = port_state_name(port.attributes.state);
  info.active_mtu_bytes = mtu_bytes(port.attributes.active_mtu);
  info.port = port.number;
  info.gid_index = port.gid_index;
  info.lid = port.attributes.lid;

  VERBENA_ASSIGN_OR_RETURN(const ProtectionDomain domain, ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(const QueuePairProbe probe, probe_queue_pair(domain));
  info.max_inline_bytes = probe.max_inline_bytes;
  info.writes_in_order = probe.writes_in_order;
  return device;
}

Result<Device> Device::open(std::string_view name) {
  VERBENA_ASSIGN_OR_RETURN(const std::optional<FaultPlan> faults, FaultPlan::from_environment());
  if (!faults) return open_without_faults(name);
  static const bool told = [&faults] {
    log_warning("faults are injected into this process's RDMA devices: {}", faults->text());
    return true;
  }();
  static_cast<void>(told);
  return open(name, *faults);
}

Result<Device> Device::open(std::string_view name, const FaultPlan& faults) {
  VERBENA_ASSIGN_OR_RETURN(Device device, open_without_faults(name));
  VERBENA_RETURN_IF_ERROR(device.inject(faults));
  return device;
}

// After the probes of from_context(): they are not what is to be tested.
Status Device::inject(const FaultPlan& faults) {
  if (info_.kind == DeviceKind::kSimulated) {
    return {
        StatusCode::kUnsupported,
        fmt::format("{} takes its faults from the simulation, not from a fault plan", info_.name)};
  }
  const Close close = info_.kind == DeviceKind::kSoft ? close_faulty<close_soft_rnic>
                                                      : close_faulty<ibv_close_device>;
  VERBENA_ASSIGN_OR_RETURN(const fault::Injector* injector,
                           fault::Injector::install(context_.get(), *control_, faults));
  context_ = {context_.release(), close};
  control_ = &injector->control();
  return {};
}

FaultCounts injected_faults(const Device& device) {
  const fault::Injector* injector = fault::Injector::of(device.get());
  return injector != nullptr ? injector->counts() : FaultCounts();
}

Result<Device> Device::open_without_faults(std::string_view name) {
  if (const std::optional<uint32_t> index = soft_index(name); index.has_value()) {
    VERBENA_ASSIGN_OR_RETURN(const soft::SoftRnic* rnic, load_soft_rnic());
    ibv_context* context = rnic->open_device(rnic->devices[*index]);
    if (context == nullptr) {
      return verbs_error(*rnic->control, fmt::format("cannot open {}", name), errno);
    }
    return from_context(context, close_soft_rnic, rnic->control, name, DeviceKind::kSoft);
  }
  if (name.starts_with(sim::kDevicePrefix)) {
    VERBENA_ASSIGN_OR_RETURN(ibv_context * context, sim::open_device(name));
    name = name.substr(0, name.find(sim::kPortMark));
    return from_context(context, sim::close_device, &sim::control(), name, DeviceKind::kSimulated);
  }
  const HardwareDevices hardware;
  ibv_device* device = hardware.find(name);
  if (device == nullptr) return not_found(name, hardware);
  VERBENA_RETURN_IF_ERROR(check_transport(*device));
  ibv_context* context = ibv_open_device(device);
  if (context == nullptr) return explain_open_error(*device, errno);
  return from_context(context, ibv_close_device, &hardware_control(), name, DeviceKind::kHardware);
}

std::vector<DeviceInfo> Device::list() {
  std::vector<std::pair<std::string, DeviceKind>> names;
  {
    const HardwareDevices hardware;
    for (const ibv_device* device : hardware) {
      names.emplace_back(device->name, DeviceKind::kHardware);
    }
  }
  for (uint32_t index = 0; index < soft_count(); ++index) {
    names.emplace_back(soft_name(index), DeviceKind::kSoft);
  }

  std::vector<DeviceInfo> infos;
  for (const auto& [name, kind] : names) {
    const Result<Device> device = open_without_faults(name);
    if (device.ok()) {
      infos.push_back(device->info());
    } else {
      DeviceInfo info;
      info.name = name;
      info.kind = kind;
      info.unavailable = device.status().message();
      infos.push_back(std::move(info));
    }
  }
  return infos;
}

}  // namespace verbena
