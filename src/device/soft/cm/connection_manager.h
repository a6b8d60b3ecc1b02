// The kernel's connection manager, for soft0: what librdmacm finds behind /dev/infiniband/rdma_cm.
//
// librdmacm writes commands into that file (linux/rdma/rdma_user_cm.h), each with the address where
// the answer is to go, and polls it for events. Here, the file is the read end of a pipe, and its
// commands come through write_command(). A connection manager of a process listens on a Unix socket
// in the directory of the registry, finds that of a port by the port's file (port_files.h), and
// exchanges with it the messages that InfiniBand's have (wire.h). A thread of its own does that, so
// that a request finds its listener also while the program computes. Nothing here is on the data
// path: one lock guards everything.
#pragma once

#include <infiniband/verbs.h>
#include <sys/epoll.h>
#include <sys/types.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/soft/cm/identifier.h"
#include "src/device/soft/presentation.h"
#include "src/device/soft/registry.h"
#include "verbena/status.h"

namespace verbena::soft::cm {

class ConnectionManager {
 public:
  // Of this process; made when it is first asked for. In a child of fork(), a new one.
  static Result<ConnectionManager*> get();
  static ConnectionManager* existing();
  ~ConnectionManager();  // of one that could not start

  // A new event channel: a descriptor of the program's, or -1 with errno.
  int open_channel(int flags);
  // Whether the descriptor is a channel. Takes no lock that is held while others are: whoever
  // intercepts close() and write() asks it, also about calls of this class.
  bool is_channel(int fd);
  // Ends channels whose descriptors are all closed.
  void drop_closed_channels();

  // How long a connection request looks for a listener before it is refused, while there is
  // somebody who could listen. Programs, perftest for one, tell their peer to connect and listen
  // then: early enough for the kernel, where a request takes its time. Tests that must not depend
  // on time change it.
  void set_listener_patience(uint64_t ns);

  // Of all identifiers: the program ends.
  void release_ports();

  // One command except for GET_EVENT: 0, or an errno value.
  int execute(int fd, uint32_t command, std::span<const std::byte> in, size_t out_bytes);
  // The oldest event; EAGAIN if there is none, though the pipe had a byte.
  int take_event(int fd, std::span<const std::byte> in, size_t out_bytes);

 private:
  explicit ConnectionManager(const Registry& registry) : registry_(registry) {}
  Status start();
  static void hold_for_fork();
  static void release_after_fork();
  static void forget_in_child();

  // Channels and their events.
  std::shared_ptr<Channel> channel_of(int fd);
  void report(Identifier& id, EventType type, int32_t status = 0);
  void report(Identifier& id, Event event);
  void queue(Channel& channel, const Event& event);
  void take_back_bytes(int fd, size_t count);
  // Returns how many events were removed.
  size_t drop_events(Channel& channel, uint32_t id);
  void end_channel(const std::shared_ptr<Channel>& channel);

  // Commands, in order of their numbers.
  struct Call {
    int fd;
    const std::shared_ptr<Channel>& channel;
    std::span<const std::byte> in;
    size_t out_bytes;
  };
  int create_id(const Call&);
  int destroy_id(const Call&);
  int bind_ip(const Call&, uint32_t command);
  int resolve_ip(const Call&, uint32_t command);
  int resolve_route(const Call&);
  int query_route(const Call&);
  int connect(const Call&);
  int listen(const Call&);
  int accept(const Call&);
  int reject(const Call&);
  int disconnect(const Call&);
  int initialize_attributes(const Call&);
  int set_option(const Call&);
  int notify(const Call&);
  int join_group(const Call&, uint32_t command);
  int leave_group(const Call&);
  int write_event(const Call& call);
  int migrate(const Call&);

  Identifier* find(uint32_t id);
  // Of this channel, or null with errno.
  Identifier* find(const Call&, uint32_t id);
  uint32_t free_number();
  int bind(Identifier& id, const Endpoint& endpoint);
  int set_port_options(Identifier& id, bool reusable, bool only_ipv6);
  int fill_attributes(const Identifier& id, uint32_t state, ib_uverbs_qp_attr& attributes) const;
  ib_uverbs_ah_attr path(const Identifier& id) const;

  // The states of a connection.
  void destroy(Identifier& id);
  void release_port(Identifier& id);
  void hang_up(Identifier& id);
  void set_deadline(Identifier& id, uint64_t delay_ns);
  void expire(Identifier& id);
  void end_connection(Identifier& id);
  Message message_of(const Identifier& id, MessageType type) const;
  int start_connecting(Identifier& id, const rdma_ucm_connect& command);
  void send_request(Identifier& id);
  Result<std::shared_ptr<Link>> link_to_listener(Identifier& id);
  // Asks again as long as one may come; not where one is there that cannot be connected with.
  void miss_listener(Identifier& id, const Status& why);
  // Whether somebody could begin to listen for it: another part of this program, or a process that
  // has the device open, whether it has the port, or has begun with connections at all, or not yet.
  bool may_get_listener(const Identifier& id) const;
  void refuse(Identifier& id, uint32_t reason, const Message* answer = nullptr);
  int confirm(Identifier& id);
  int accept_request(Identifier& id, const rdma_ucm_accept& command);
  int reject_request(Identifier& id, uint32_t reason, std::span<const uint8_t> private_data);
  void establish(Identifier& id);
  void report_join(Identifier& id, uint32_t number, const Endpoint& address);

  // Links.
  Result<std::shared_ptr<Link>> link_to(const PortOwner& owner);
  std::shared_ptr<Link> add_link(int fd, const PortOwner& peer);
  void send(const std::shared_ptr<Link>& link, const Message& message);
  void flush(const std::shared_ptr<Link>& link);
  void drop_link(std::shared_ptr<Link> link);
  void receive_all(const std::shared_ptr<Link>& link);
  void receive(const std::shared_ptr<Link>& link, const Message& message);
  void receive_request(const std::shared_ptr<Link>& link, const Message& message);
  void receive_reply(Identifier& id, const Message& message);
  // Whether this process can connect with that one; kUnavailable if it is gone.
  Status reach(const PortOwner& owner) const;
  bool owner_lives(const PortOwner& owner) const;
  void log_unreachable(const Status& why);

  // The thread.
  void serve();
  // What accept_links() says, of all events.
  bool handle(std::span<const epoll_event> events);
  // False if no descriptor was free: the thread has to pause then.
  bool accept_links();
  int wait_ms();
  void wake();
  void expire_all();

  const Registry& registry_;
  std::mutex mutex_;
  std::mutex inodes_mutex_;              // the last one to be taken; nothing is called under it
  std::unordered_set<uint64_t> inodes_;  // of channels
  LinkLayer link_layer_ = LinkLayer::kInfiniBand;
  PortOwner self_;
  uint64_t listener_patience_ns_ = 500'000'000;
  std::unique_ptr<PortFiles> ports_;
  int listen_fd_ = -1;
  int epoll_fd_ = -1;
  int wake_fd_ = -1;
  uint64_t next_token_ = 16;
  uint32_t next_number_ = 0;
  std::unordered_map<uint64_t, std::shared_ptr<Channel>> channels_;  // by token
  std::unordered_map<uint64_t, std::shared_ptr<Link>> links_;        // by token
  std::unordered_map<uint32_t, std::unique_ptr<Identifier>> identifiers_;
  std::unordered_map<uint32_t, Multicast> groups_;
  std::set<std::pair<uint64_t, uint32_t>> deadlines_;
  Thread thread_;
};

// The address that a multicast group of IP has in InfiniBand, and in RoCE version 2.
ibv_gid group_of(const Endpoint& group, uint16_t port_space);
ibv_gid roce_group_of(const Endpoint& group);
// Which device an address of this host belongs to: 127.0.0.2 is that of the second one, and so on;
// all others are the first one's.
uint32_t device_of(const Endpoint& address);

}  // namespace verbena::soft::cm
