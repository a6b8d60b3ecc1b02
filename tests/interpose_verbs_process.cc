// Calls every public verb that takes an object on objects of soft0: what it has works, and what it
// does not have says so instead of looking behind structures that are not libibverbs' own.
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr int kLocalWrite = IBV_ACCESS_LOCAL_WRITE;

int failures = 0;

void check_at(bool holds, const char* what, int line) {
  if (!holds) {
    std::printf("FAILED in line %d: %s (errno: %s)\n", line, what, std::strerror(errno));
    ++failures;
  }
}

#define CHECK(condition) check_at((condition), #condition, __LINE__)

// An expression that must yield null and EOPNOTSUPP.
#define CHECK_NONE(expression)                                                       \
  do {                                                                               \
    errno = 0;                                                                       \
    check_at((expression) == nullptr && errno == EOPNOTSUPP, #expression, __LINE__); \
  } while (false)

// An expression that must yield null and EINVAL.
#define CHECK_REFUSED(expression)                                                \
  do {                                                                           \
    errno = 0;                                                                   \
    check_at((expression) == nullptr && errno == EINVAL, #expression, __LINE__); \
  } while (false)

// A verb that the oldest supported libibverbs neither declares nor has; Verbena has it in any case.
template <typename Verb>
Verb* newer(const char* name, const char* version) {
  void* found = dlvsym(RTLD_DEFAULT, name, version);
  check_at(found != nullptr, name, __LINE__);
  if (found == nullptr) std::exit(1);
  return reinterpret_cast<Verb*>(found);
}

// Calls what takes the objects, whose contexts lead nowhere; each is refused.
struct Objects {
  ibv_pd* domain;
  ibv_mr* region;
  ibv_comp_channel* channel;
  ibv_cq* cq;
  ibv_srq* srq;
  ibv_qp* qp;

  void check_refused() const {
    ibv_srq_init_attr srq_attributes{};
    ibv_srq_attr srq_now{};
    ibv_qp_init_attr qp_attributes{};
    ibv_qp_attr qp_now{};
    ibv_cq* ready = nullptr;
    void* cookie = nullptr;
    ibv_async_event event{};
    char byte = 0;
    CHECK(ibv_dealloc_pd(domain) == EINVAL);
    CHECK_REFUSED(ibv_reg_mr_iova2(domain, &byte, 1, 0, kLocalWrite));
    CHECK_REFUSED(ibv_create_srq(domain, &srq_attributes));
    CHECK_REFUSED(ibv_create_qp(domain, &qp_attributes));
    CHECK(ibv_dereg_mr(region) == EINVAL);
    CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, domain, nullptr, 0, 0) != 0);
    CHECK(ibv_destroy_comp_channel(channel) == EINVAL);
    errno = 0;
    CHECK(ibv_get_cq_event(channel, &ready, &cookie) == -1 && errno == EINVAL);
    CHECK(ibv_resize_cq(cq, 1) == EINVAL);
    ibv_ack_cq_events(cq, 1);
    CHECK(ibv_destroy_cq(cq) == EINVAL);
    CHECK(ibv_query_srq(srq, &srq_now) == EINVAL);
    CHECK(ibv_modify_srq(srq, &srq_now, IBV_SRQ_LIMIT) == EINVAL);
    CHECK(ibv_destroy_srq(srq) == EINVAL);
    CHECK(ibv_query_qp(qp, &qp_now, IBV_QP_STATE, &qp_attributes) == EINVAL);
    CHECK(ibv_modify_qp(qp, &qp_now, IBV_QP_STATE) == EINVAL);
    CHECK(ibv_qp_to_qp_ex(qp) == nullptr);
    CHECK(ibv_attach_mcast(qp, nullptr, 0) != 0);
    CHECK(ibv_destroy_qp(qp) == EINVAL);
    event.event_type = IBV_EVENT_CQ_ERR;
    event.element.cq = cq;
    ibv_ack_async_event(&event);
    event.event_type = IBV_EVENT_QP_FATAL;
    event.element.qp = qp;
    ibv_ack_async_event(&event);
    event.event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
    event.element.srq = srq;
    ibv_ack_async_event(&event);
  }
  void set_contexts(ibv_context* context) const {
    domain->context = region->context = channel->context = context;
    cq->context = srq->context = qp->context = context;
  }
};

void check_refused(ibv_context* context) {
  ibv_device_attr attributes{};
  ibv_gid gid{};
  __be16 key = 0;
  ibv_async_event event{};
  CHECK(ibv_query_device(context, &attributes) == EINVAL);
#undef ibv_query_port
  _compat_ibv_port_attr* const none = nullptr;
  CHECK(ibv_query_port(context, 1, none) == EINVAL);
  CHECK(ibv_query_gid(context, 1, 0, &gid) == EINVAL);
  CHECK(ibv_query_pkey(context, 1, 0, &key) == -1);
  CHECK(ibv_get_pkey_index(context, 1, 0xffff) == -1);
  CHECK_REFUSED(ibv_alloc_pd(context));
  CHECK_REFUSED(ibv_create_comp_channel(context));
  CHECK_REFUSED(ibv_create_cq(context, 1, nullptr, nullptr, 0));
  CHECK(ibv_get_async_event(context, &event) == -1);
  CHECK(ibv_close_device(context) == EINVAL);
}

// Gone or damaged objects name no context, or one that is none.
// A UD queue pair, an address handle and a multicast group.
void check_datagrams(ibv_pd* domain, ibv_qp_init_attr attributes) {
  attributes.qp_type = IBV_QPT_UD;
  ibv_qp* qp = ibv_create_qp(domain, &attributes);
  CHECK(qp != nullptr);
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_INIT;
  state.port_num = 1;
  const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  CHECK(ibv_modify_qp(qp, &state, mask | IBV_QP_ACCESS_FLAGS) == EINVAL);
  CHECK(ibv_modify_qp(qp, &state, mask | IBV_QP_QKEY) == 0);

  ibv_ah_attr path{};
  path.port_num = 1;
  CHECK(ibv_create_ah(domain, &path) == nullptr && errno == EINVAL);  // leads nowhere
  ibv_wc completion{};
  completion.slid = 1;
  ibv_grh header{};
  CHECK(ibv_init_ah_from_wc(domain->context, 1, &completion, &header, &path) == 0);
  CHECK(path.dlid == 1 && path.is_global == 0);
  ibv_ah* handle = ibv_create_ah_from_wc(domain, &completion, &header, 1);
  CHECK(handle != nullptr && handle->pd == domain);
  CHECK(ibv_destroy_ah(handle) == 0);
  CHECK(ibv_destroy_ah(handle) == EINVAL);

  ibv_gid group{};
  CHECK(ibv_attach_mcast(qp, &group, 0xc001) == EINVAL);
  group.raw[0] = 0xff;
  CHECK(ibv_detach_mcast(qp, &group, 0xc001) == EINVAL);
  CHECK(ibv_attach_mcast(qp, &group, 0xc001) == 0);
  CHECK(ibv_detach_mcast(qp, &group, 0xc001) == 0);
  CHECK(ibv_destroy_qp(qp) == 0);
}

// Buffers of ibv_alloc_buf(), of libibverbs 64 and newer.
void check_buffers(ibv_context* context, ibv_pd* domain) {
  auto* allocate = newer<void*(ibv_pd*, size_t, void**)>("ibv_alloc_buf", "IBVERBS_1.17");
  auto* release = newer<void(void*)>("ibv_free_buf", "IBVERBS_1.17");
  auto* register_part =
      newer<ibv_mr*(ibv_pd*, void*, void*, size_t, int)>("ibv_reg_buf_mr", "IBVERBS_1.17");
  auto* export_one = newer<int(void*)>("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18");
  constexpr size_t kBytes = 10'000;
  void* handle = nullptr;
  auto* const bytes = static_cast<char*>(allocate(domain, kBytes, &handle));
  CHECK(bytes != nullptr && handle != nullptr);
  CHECK(reinterpret_cast<uintptr_t>(bytes) % static_cast<size_t>(sysconf(_SC_PAGESIZE)) == 0);
  std::memset(bytes, 1, kBytes);
  void* other_handle = nullptr;
  void* other = allocate(domain, 1, &other_handle);
  CHECK(other != nullptr && other_handle != handle);

  ibv_mr* whole = register_part(domain, handle, bytes, kBytes, kLocalWrite);
  CHECK(whole != nullptr && whole->addr == bytes && whole->length == kBytes);
  CHECK(whole != nullptr && ibv_dereg_mr(whole) == 0);
  ibv_mr* end = register_part(domain, handle, bytes + kBytes - 10, 10,
                              kLocalWrite | static_cast<int>(IBV_ACCESS_RELAXED_ORDERING));
  CHECK(end != nullptr && end->addr == bytes + kBytes - 10);
  CHECK(end != nullptr && ibv_dereg_mr(end) == 0);
  CHECK_REFUSED(register_part(domain, handle, bytes + kBytes - 10, 11, kLocalWrite));
  CHECK_REFUSED(register_part(domain, handle, bytes - 1, 10, kLocalWrite));
  CHECK_REFUSED(register_part(domain, handle, bytes + 1, SIZE_MAX, kLocalWrite));
  CHECK_REFUSED(register_part(domain, other_handle, bytes, 10, kLocalWrite));
  ibv_pd* other_domain = ibv_alloc_pd(context);
  CHECK_REFUSED(register_part(other_domain, handle, bytes, 10, kLocalWrite));
  CHECK(ibv_dealloc_pd(other_domain) == 0);
  errno = 0;
  CHECK(export_one(handle) == -1 && errno == ENODATA);
  release(other_handle);
  release(handle);
  release(nullptr);
  CHECK_REFUSED(register_part(domain, handle, bytes, 10, kLocalWrite));
  CHECK_REFUSED(allocate(nullptr, kBytes, &handle));
}

// As libibverbs 57 and newer declare it.
struct RegionWish {
  size_t length_bytes;
  int access;
  uint64_t fields;
  uint64_t iova;
  void* address;
  int fd;
  uint64_t fd_offset;
  void* hint;
  void* buffer;
};
constexpr uint64_t kWithIova = 1 << 0;
constexpr uint64_t kWithAddress = 1 << 1;
constexpr uint64_t kWithFd = 1 << 2;
constexpr uint64_t kWithFdOffset = 1 << 3;
constexpr uint64_t kWithHint = 1 << 4;
constexpr uint64_t kWithBuffer = 1 << 5;

// ibv_reg_mr_ex(): all ways to register memory in one call.
void check_registration_by_attributes(ibv_context* context, ibv_pd* domain) {
  auto* register_memory = newer<ibv_mr*(ibv_pd*, RegionWish*)>("ibv_reg_mr_ex", "IBVERBS_1.15");
  std::vector<char> bytes(8192);
  const int relaxed = kLocalWrite | static_cast<int>(IBV_ACCESS_RELAXED_ORDERING);
  const auto wish = [&](uint64_t fields) {
    return RegionWish{.length_bytes = 4096,
                      .access = relaxed,
                      .fields = fields,
                      .iova = 0x10000,
                      .address = bytes.data(),
                      .fd = -1,
                      .fd_offset = 0,
                      .hint = nullptr,
                      .buffer = nullptr};
  };
  RegionWish plain = wish(kWithAddress);
  ibv_mr* region = register_memory(domain, &plain);
  CHECK(region != nullptr && region->addr == bytes.data() && region->length == 4096 &&
        region->pd == domain && region->context == context && region->lkey != 0);
  CHECK(region != nullptr && ibv_dereg_mr(region) == 0);
  RegionWish moved = wish(kWithAddress | kWithIova);
  region = register_memory(domain, &moved);
  CHECK(region != nullptr && region->addr == bytes.data());
  // Requests reach it at the address that was given: advice tells whether it is there.
  ibv_sge there = {0x10000, 4096, region != nullptr ? region->lkey : 0};
  ibv_sge elsewhere = {reinterpret_cast<uint64_t>(bytes.data()), 4096, there.lkey};
  CHECK(ibv_advise_mr(domain, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &there, 1) == 0);
  CHECK(ibv_advise_mr(domain, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &elsewhere, 1) == EFAULT);
  CHECK(region != nullptr && ibv_dereg_mr(region) == 0);

  auto* allocate = newer<void*(ibv_pd*, size_t, void**)>("ibv_alloc_buf", "IBVERBS_1.17");
  auto* release = newer<void(void*)>("ibv_free_buf", "IBVERBS_1.17");
  RegionWish of_buffer = wish(kWithAddress | kWithBuffer);
  of_buffer.address = allocate(domain, 4096, &of_buffer.buffer);
  region = register_memory(domain, &of_buffer);
  CHECK(region != nullptr && region->addr == of_buffer.address);
  CHECK(region != nullptr && ibv_dereg_mr(region) == 0);
  of_buffer.length_bytes = 4097;
  CHECK_REFUSED(register_memory(domain, &of_buffer));
  of_buffer.length_bytes = 4096;
  of_buffer.fields = kWithBuffer;
  CHECK_REFUSED(register_memory(domain, &of_buffer));
  of_buffer.fields = kWithAddress | kWithBuffer | kWithFdOffset;
  CHECK_REFUSED(register_memory(domain, &of_buffer));
  release(of_buffer.buffer);

  for (const uint64_t fields :
       {uint64_t{0}, kWithIova, kWithAddress | kWithFdOffset, kWithFd | kWithIova,
        kWithFd | kWithFdOffset, kWithFd | kWithFdOffset | kWithIova | kWithAddress}) {
    RegionWish wrong = wish(fields);
    CHECK_REFUSED(register_memory(domain, &wrong));
  }
  for (const uint64_t fields : {kWithFd | kWithFdOffset | kWithIova, kWithAddress | kWithHint,
                                kWithAddress | uint64_t{1} << 40}) {
    RegionWish unknown = wish(fields);
    CHECK_NONE(register_memory(domain, &unknown));
  }
  RegionWish remote = wish(kWithAddress);
  remote.access = IBV_ACCESS_REMOTE_WRITE;
  CHECK_REFUSED(register_memory(domain, &remote));
}

void check_port_speed(ibv_context* context) {
  auto* query =
      newer<int(ibv_context*, uint32_t, uint64_t*)>("ibv_query_port_speed", "IBVERBS_1.16");
  uint64_t speed = 0;
  CHECK(query(context, 1, &speed) == 0 && speed == 1000);  // of 100 Mb/s, as 4X EDR has
  CHECK(query(context, 2, &speed) == EINVAL);
  CHECK(query(context, 257, &speed) == EINVAL);
}

void check_that_objects_without_context_are_refused(const Objects& objects) {
  ibv_context* const context = objects.domain->context;
  // A page that is gone, as freed memory is; bytes that lie there, but are no context.
  void* const gone = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(gone, 4096);
  std::vector<uint64_t> noise(sizeof(ibv_context) / sizeof(uint64_t), 0x5a5a5a5a5a5a5a5a);
  std::vector<uint64_t> zeros(noise.size());
  ibv_device* const self = reinterpret_cast<ibv_device*>(noise.data());
  ibv_context pointing{};
  pointing.device = self;
  for (void* wild : {static_cast<void*>(nullptr), gone, static_cast<void*>(noise.data()),
                     static_cast<void*>(zeros.data()), static_cast<void*>(&pointing)}) {
    auto* const none = static_cast<ibv_context*>(wild);
    check_refused(none);
    objects.set_contexts(none);
    objects.check_refused();
    objects.set_contexts(context);
  }
  Objects{}.check_refused();
}

}  // namespace

int main() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  CHECK(list != nullptr && count >= 1);
  ibv_device* device = list[0];
  CHECK(std::strcmp(ibv_get_device_name(device), "soft0") == 0);
  CHECK(ibv_get_device_guid(device) != 0);
  CHECK(ibv_get_device_index(device) == -1);
  CHECK(std::strcmp(ibv_node_type_str(device->node_type), "InfiniBand channel adapter") == 0);

  // Lists nest, and null may be asked for no count.
  ibv_device** second = ibv_get_device_list(nullptr);
  CHECK(second != nullptr && second != list && second[0] == device);
  ibv_free_device_list(second);

  ibv_context* context = ibv_open_device(device);
  CHECK(context != nullptr);
  ibv_context* other = ibv_open_device(device);
  CHECK(other != nullptr && other != context);
  CHECK(ibv_close_device(other) == 0);
  ibv_free_device_list(list);
  if (context == nullptr) return 1;

  ibv_device_attr attributes{};
  CHECK(ibv_query_device(context, &attributes) == 0 && attributes.max_qp > 0);
  ibv_device_attr_ex extended{};
  CHECK(ibv_query_device_ex(context, nullptr, &extended) == 0);
  CHECK(extended.orig_attr.max_qp == attributes.max_qp &&
        extended.odp_caps.general_caps ==
            (unsigned{IBV_ODP_SUPPORT} | unsigned{IBV_ODP_SUPPORT_IMPLICIT}));

  // Programs of old have a structure that ends before port_cap_flags2.
  struct {
    ibv_port_attr attributes;
    char guard[64];
  } port;
  std::memset(&port, 0x5a, sizeof(port));
#undef ibv_query_port
  CHECK(ibv_query_port(context, 1, reinterpret_cast<_compat_ibv_port_attr*>(&port.attributes)) ==
        0);
  CHECK(port.attributes.state == IBV_PORT_ACTIVE && port.attributes.lid != 0);
  CHECK(port.attributes.port_cap_flags2 == 0x5a5a);
  CHECK(port.guard[0] == 0x5a && port.guard[63] == 0x5a);
  CHECK(ibv_query_port(context, 2, reinterpret_cast<_compat_ibv_port_attr*>(&port.attributes)) !=
        0);

  ibv_gid gid{};
  CHECK(ibv_query_gid(context, 1, 0, &gid) == 0 && gid.global.interface_id != 0);
  CHECK(ibv_query_gid(context, 1, 1, &gid) != 0);
  ibv_gid_entry entry{};
  CHECK(ibv_query_gid_ex(context, 1, 0, &entry, 0) == 0 && entry.port_num == 1);
  CHECK(entry.gid_type == IBV_GID_TYPE_IB);
  CHECK(ibv_query_gid_ex(context, 1, 1, &entry, 0) != 0);
  ibv_gid_entry table[4]{};
  CHECK(ibv_query_gid_table(context, table, 4, 0) == 1);
  CHECK(std::memcmp(&table[0].gid, &entry.gid, sizeof(gid)) == 0);
  // A newer program's entry is larger: what is not known stays.
  struct {
    ibv_gid_entry entry;
    char newer[16];
  } large;
  std::memset(&large, 0x5a, sizeof(large));
  CHECK(_ibv_query_gid_ex(context, 1, 0, &large.entry, 0, sizeof(large)) == 0);
  CHECK(large.newer[0] == 0x5a);
  __be16 key = 0;
  CHECK(ibv_query_pkey(context, 1, 0, &key) == 0 && key == 0xffff);
  CHECK(ibv_query_pkey(context, 1, 1, &key) == -1);
  CHECK(ibv_get_pkey_index(context, 1, 0xffff) == 0);
  CHECK(ibv_get_pkey_index(context, 1, 0x1234) == -1);

  ibv_pd* domain = ibv_alloc_pd(context);
  CHECK(domain != nullptr);
  std::vector<char> buffer(8192);
  ibv_mr* region = ibv_reg_mr(domain, buffer.data(), buffer.size(), kLocalWrite);
  CHECK(region != nullptr && region->length == buffer.size());
  const uint32_t region_key = region->rkey;
  CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, domain, nullptr, 0, 0) == 0);
  CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, domain, nullptr, 0,
                     IBV_ACCESS_REMOTE_WRITE) == IBV_REREG_MR_ERR_INPUT);
  CHECK(region->rkey == region_key);
  // A constant without optional flags takes another function than a variable one or relaxed
  // ordering.
  ibv_mr* relaxed = ibv_reg_mr(domain, buffer.data(), 4096,
                               kLocalWrite | static_cast<int>(IBV_ACCESS_RELAXED_ORDERING));
  CHECK(relaxed != nullptr && ibv_dereg_mr(relaxed) == 0);
  ibv_mr* moved = ibv_reg_mr_iova(domain, buffer.data(), 4096, 0x1000, kLocalWrite);
  CHECK(moved != nullptr && ibv_dereg_mr(moved) == 0);
  CHECK_NONE(ibv_reg_dmabuf_mr(domain, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE));
  CHECK_NONE(ibv_import_pd(context, 0));
  CHECK_NONE(ibv_import_mr(domain, 0));
  CHECK_NONE(ibv_import_dm(context, 0));
  check_buffers(context, domain);
  check_registration_by_attributes(context, domain);
  check_port_speed(context);
  ibv_mw* window = ibv_alloc_mw(domain, IBV_MW_TYPE_1);
  CHECK(window != nullptr && ibv_dealloc_mw(window) == 0);
  ibv_mr* null_region = ibv_alloc_null_mr(domain);
  CHECK(null_region != nullptr && ibv_dereg_mr(null_region) == 0);
  ibv_alloc_dm_attr device_memory{};
  device_memory.length = 64;
  ibv_dm* memory_of_device = ibv_alloc_dm(context, &device_memory);
  CHECK(memory_of_device != nullptr);
  auto* export_memory = newer<int(ibv_dm*)>("ibv_dm_export_dmabuf_fd", "IBVERBS_1.16");
  errno = 0;
  CHECK(export_memory(memory_of_device) == -1 && errno == EOPNOTSUPP);
  CHECK(ibv_free_dm(memory_of_device) == 0);
  ibv_td_init_attr thread_domain{};
  ibv_parent_domain_init_attr parent{};
  parent.pd = domain;
  parent.td = ibv_alloc_td(context, &thread_domain);
  CHECK(parent.td != nullptr);
  ibv_pd* parent_domain = ibv_alloc_parent_domain(context, &parent);
  CHECK(parent_domain != nullptr && ibv_dealloc_td(parent.td) == EBUSY);
  CHECK(ibv_dealloc_pd(parent_domain) == 0 && ibv_dealloc_td(parent.td) == 0);
  ibv_xrcd_init_attr xrc_domain{};
  xrc_domain.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  xrc_domain.fd = -1;
  xrc_domain.oflags = O_CREAT;
  ibv_xrcd* xrcd = ibv_open_xrcd(context, &xrc_domain);
  CHECK(xrcd != nullptr && ibv_close_xrcd(xrcd) == 0);
  ibv_qp_open_attr opened{};
  CHECK_NONE(ibv_open_qp(context, &opened));
  ibv_values_ex values{};
  values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  CHECK(ibv_query_rt_values_ex(context, &values) == 0 && values.raw_clock.tv_nsec != 0);
  ibv_counters_init_attr counters{};
  CHECK_NONE(ibv_create_counters(context, &counters));

  ibv_comp_channel* channel = ibv_create_comp_channel(context);
  CHECK(channel != nullptr);
  ibv_cq* cq = ibv_create_cq(context, 16, &failures, channel, 0);
  CHECK(cq != nullptr && cq->cqe >= 16 && cq->cq_context == &failures);
  CHECK(ibv_resize_cq(cq, 16) == 0);
  CHECK(ibv_resize_cq(cq, 17) == 0 && cq->cqe == 17);
  CHECK(ibv_resize_cq(cq, 0) == EINVAL);
  CHECK(ibv_req_notify_cq(cq, 0) == 0);
  ibv_cq_init_attr_ex cq_extended{};
  cq_extended.cqe = 16;
  ibv_cq_ex* cq_to_poll = ibv_create_cq_ex(context, &cq_extended);
  CHECK(cq_to_poll != nullptr);
  ibv_poll_cq_attr poll{};
  CHECK(ibv_start_poll(cq_to_poll, &poll) == ENOENT);
  CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq_to_poll)) == 0);
  cq_extended.wc_flags = IBV_WC_EX_WITH_CVLAN;
  CHECK_NONE(ibv_create_cq_ex(context, &cq_extended));
  ibv_modify_cq_attr moderation{};
  CHECK(ibv_modify_cq(cq, &moderation) == EOPNOTSUPP);

  ibv_srq_init_attr srq_attributes{};
  srq_attributes.attr = {.max_wr = 8, .max_sge = 1, .srq_limit = 0};
  ibv_srq* srq = ibv_create_srq(domain, &srq_attributes);
  CHECK(srq != nullptr);
  ibv_srq_attr srq_now{};
  CHECK(ibv_query_srq(srq, &srq_now) == 0 && srq_now.max_wr >= 8);
  srq_now.srq_limit = 2;
  CHECK(ibv_modify_srq(srq, &srq_now, IBV_SRQ_LIMIT) == 0);
  uint32_t srq_number = 0;
  CHECK(ibv_get_srq_num(srq, &srq_number) == EOPNOTSUPP);
  ibv_srq_init_attr_ex srq_extended{};
  srq_extended.attr = {.max_wr = 8, .max_sge = 1, .srq_limit = 0};
  srq_extended.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
  srq_extended.srq_type = IBV_SRQT_BASIC;
  srq_extended.pd = domain;
  ibv_srq* srq_of_extended = ibv_create_srq_ex(context, &srq_extended);
  CHECK(srq_of_extended != nullptr && ibv_destroy_srq(srq_of_extended) == 0);

  ibv_qp_init_attr qp_attributes{};
  qp_attributes.send_cq = cq;
  qp_attributes.recv_cq = cq;
  qp_attributes.qp_type = IBV_QPT_RC;
  qp_attributes.cap = {.max_send_wr = 4,
                       .max_recv_wr = 4,
                       .max_send_sge = 1,
                       .max_recv_sge = 1,
                       .max_inline_data = 0};
  ibv_qp* qp = ibv_create_qp(domain, &qp_attributes);
  CHECK(qp != nullptr && qp->qp_num > 1);
  ibv_qp_attr qp_now{};
  ibv_qp_init_attr qp_made{};
  CHECK(ibv_query_qp(qp, &qp_now, IBV_QP_STATE, &qp_made) == 0 && qp_now.qp_state == IBV_QPS_RESET);
  qp_now = {};
  qp_now.qp_state = IBV_QPS_INIT;
  qp_now.port_num = 1;
  CHECK(ibv_modify_qp(qp, &qp_now,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
  CHECK(ibv_modify_qp(qp, &qp_now, IBV_QP_RATE_LIMIT) == EOPNOTSUPP);
  CHECK(ibv_qp_to_qp_ex(qp) == nullptr);
  CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0) == 0);
  CHECK(ibv_attach_mcast(qp, &gid, 0) == EINVAL);  // of UD queue pairs only
  CHECK(ibv_detach_mcast(qp, &gid, 0) == EINVAL);
  ibv_ece ece{};
  ece.vendor_id = 1;
  CHECK(ibv_set_ece(qp, &ece) == EOPNOTSUPP);
  CHECK(ibv_query_ece(qp, &ece) == EOPNOTSUPP);
  ibv_flow_attr flow{};
  CHECK_NONE(ibv_create_flow(qp, &flow));
  ibv_qp_init_attr_ex qp_extended{};
  qp_extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  qp_extended.pd = domain;
  qp_extended.qp_type = IBV_QPT_RC;
  qp_extended.send_cq = qp_extended.recv_cq = cq;
  qp_extended.cap = qp_attributes.cap;
  qp_extended.send_ops_flags = IBV_QP_EX_WITH_SEND;
  ibv_qp* qp_with_batches = ibv_create_qp_ex(context, &qp_extended);
  CHECK(qp_with_batches != nullptr);
  ibv_qp_ex* batches = ibv_qp_to_qp_ex(qp_with_batches);
  CHECK(batches != nullptr);
  ibv_wr_start(batches);
  ibv_wr_send(batches);
  CHECK(ibv_wr_complete(batches) == EINVAL);  // in RESET
  CHECK(ibv_destroy_qp(qp_with_batches) == 0);
  ibv_wr_start(batches);
  CHECK(ibv_wr_complete(batches) == EINVAL);
  qp_extended.send_ops_flags = IBV_QP_EX_WITH_TSO;
  CHECK_NONE(ibv_create_qp_ex(context, &qp_extended));
  qp_attributes.qp_type = IBV_QPT_DRIVER;
  CHECK_NONE(ibv_create_qp(domain, &qp_attributes));
  check_datagrams(domain, qp_attributes);

  ibv_ah_attr path{};
  path.port_num = 1;
  uint8_t mac[ETHERNET_LL_SIZE];
  uint16_t vlan = 0;
  CHECK(ibv_resolve_eth_l2_from_gid(context, &path, mac, &vlan) != 0);

  check_that_objects_without_context_are_refused({domain, region, channel, cq, srq, qp});

  // Objects in use are kept.
  CHECK(ibv_dealloc_pd(domain) == EBUSY);
  CHECK(ibv_destroy_cq(cq) == EBUSY);
  CHECK(ibv_destroy_qp(qp) == 0);
  CHECK(ibv_destroy_srq(srq) == 0);
  CHECK(ibv_destroy_cq(cq) == 0);
  CHECK(ibv_resize_cq(cq, 1) != 0);
  CHECK(ibv_destroy_comp_channel(channel) == 0);
  CHECK(ibv_dereg_mr(region) == 0);
  CHECK(ibv_dealloc_pd(domain) == 0);
  CHECK(ibv_close_device(context) == 0);
  return failures == 0 ? 0 : 1;
}
