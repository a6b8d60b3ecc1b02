// A front-end of a hashtable. Each pending operation is a small state machine, carried on by the
// completions of the region; layout.h says what it does and why. Control path: front_end.cc; data
// path: front_end_datapath.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "hashtable/bucket_turns.h"
#include "hashtable/hot_area.h"
#include "hashtable/layout.h"
#include "hashtable/operation.h"
#include "hashtable/spare_nodes.h"
#include "verbena/apps/hashtable.h"
#include "verbena/remote.h"
#include "verbena/status.h"

namespace verbena::hashtable {

inline constexpr uint32_t kMostPending = 256;

// What a front-end needs of its region.
struct RegionNeeds {
  // Of its operations, for each of the table's: the last copy, the node and the compare-and-swap.
  uint32_t operations_of_one = 3;
  // Besides: one exchange of the pool.
  uint32_t more_operations = SpareNodes::kOperations;

  static constexpr RegionNeeds of(bool has_hot_area, const HashtableOptions& options) {
    if (!has_hot_area) return {};
    // Also of the demotion that may be on its way, of the pool of copies, and of what is written
    // after its answer.
    const uint32_t more = 1 + write_backs(options);
    return {HotArea::kOperationsOfOne,
            more * HotArea::kOperationsOfOne + 2 * SpareNodes::kOperations};
  }
  static constexpr uint32_t write_backs(const HashtableOptions& options) {
    return options.acknowledgement == HashtableAcknowledgement::kBuffered ? HotArea::kWriteBacks
                                                                          : 0;
  }
};

// kInvalidArgument: an option is out of range.
Status check(const HashtableOptions& options);
// The same of kBuffered, in a table with this header.
Status check_buffering(const HashtableOptions& options, const Header& header);

class FrontEnd final : public Hashtable {
 public:
  FrontEnd(RemoteRegion& region, const Layout& layout, const HashtableOptions& options,
           uint32_t pending_limit);
  ~FrontEnd() override;

  HashtableReply search(std::string_view key) override { return alone(Kind::kSearch, key, {}); }
  HashtableReply insert(std::string_view key, std::string_view value) override {
    return alone(Kind::kInsert, key, value);
  }
  HashtableReply update(std::string_view key, std::string_view value) override {
    return alone(Kind::kUpdate, key, value);
  }
  HashtableReply remove(std::string_view key) override { return alone(Kind::kRemove, key, {}); }

  PostResult post_search(std::string_view key, uint64_t token) override {
    return post(Kind::kSearch, key, {}, token);
  }
  PostResult post_insert(std::string_view key, std::string_view value, uint64_t token) override {
    return post(Kind::kInsert, key, value, token);
  }
  PostResult post_update(std::string_view key, std::string_view value, uint64_t token) override {
    return post(Kind::kUpdate, key, value, token);
  }
  PostResult post_remove(std::string_view key, uint64_t token) override {
    return post(Kind::kRemove, key, {}, token);
  }
  void expect_hot(std::string_view key) override {
    if (hot_.has_value() && is_fit(key, {})) hot_->expect_hot(layout_.hash(key));
  }
  void collect() override {
    if (hot_.has_value()) poll_hot_area();
    collected_ = region_->collect();
    if (buffers_) deliverable_ = acknowledged_.size();
  }
  bool take(HashtableReply* reply) override;

  uint64_t due_ns() const override { return hot_.has_value() ? hot_->due_ns() : UINT64_MAX; }
  uint32_t pending() const override { return static_cast<uint32_t>(pending_limit_ - free_.size()); }
  uint32_t pending_limit() const override { return pending_limit_; }
  uint64_t unpublished_since_ns() const override {
    return hot_.has_value() ? hot_->kept_since_ns() : UINT64_MAX;
  }
  Status flush() override;
  const Status& status() const override { return status_.ok() ? region_->status() : status_; }
  const Status& error() const override { return status().ok() ? *error_ : status(); }
  Status close() override;
  const HashtableStatistics& statistics() const override;

 private:
  static constexpr uint64_t kPoolToken = ~uint64_t{0} - 1;

  using Kind = Operation::Kind;
  using Step = Operation::Step;
  using Phase = Operation::Phase;

  static constexpr uint32_t kMostNodes = Operation::kMostNodes;
  // Nodes that insertions leave to updates, which a full table should still have.
  static constexpr uint32_t kLeftToUpdates = 8;

  HashtableReply alone(Kind kind, std::string_view key, std::string_view value);
  PostResult post(Kind kind, std::string_view key, std::string_view value, uint64_t token);

  // Each carries an operation on. True: it is done, and *reply is its reply.
  bool handle(const RemoteCompletion& done, HashtableReply* reply);
  bool walk(Operation& operation, NodePointer head, HashtableReply* reply);
  bool visit(Operation& operation, NodePointer node, HashtableReply* reply);
  bool take_node(Operation& operation, const RemoteCompletion& done, HashtableReply* reply);
  bool found(Operation& operation, const Node& node, HashtableReply* reply);
  bool absent(Operation& operation, HashtableReply* reply);
  // A node with the key was found whose value counts.
  bool act(Operation& operation, bool is_absent, std::string_view value, HashtableReply* reply);
  bool take_copy(Operation& operation, const RemoteCompletion& done);
  bool take_publication(Operation& operation, NodePointer before, HashtableReply* reply);
  bool finish(Operation& operation, HashtableOutcome outcome, std::string_view value,
              HashtableReply* reply);
  // With the same outcome for the updates that it stands for.
  void end_turn(Operation& operation, HashtableOutcome outcome);

  // What was answered before it was published (front_end_hot_datapath.cc).
  bool answer_at_once(Kind kind, uint64_t hash, std::string_view key, std::string_view value,
                      uint64_t token);
  void take_acknowledged(HashtableReply* reply);
  void carry_strays();
  void end_write_back(Operation& operation, HashtableOutcome outcome);
  Status write_all_back();

  // The hot area (front_end_hot_datapath.cc).
  bool enter_block(Operation& operation);
  bool leave_block(Operation& operation, HashtableReply* reply);
  void follow(Operation& operation, const Node& node);
  bool take_check(Operation& operation, NodePointer head, HashtableReply* reply);
  void begin_demotion(uint64_t hash, uint32_t victim);
  void go_on_with_demotion(Operation& operation);
  void end_demotion(Operation& operation);
  void poll_hot_area();

  void handle_shared(const RemoteCompletion& done);
  void give_back_nodes(Operation& operation);
  void read_word(Operation& operation, Step step);
  // Looks for the key in its bucket, if need be later, when it is the operation's turn.
  void enter_bucket(Operation& operation);
  void change_published(Operation& operation, const Operation& published);
  void read_again(Operation& operation);
  void change(Operation& operation);
  void set_changing(Operation& operation, bool is_changing);
  bool take_nodes(Operation& operation);
  void write(Operation& operation);
  void publish(Operation& operation);
  // Operations that wait for nodes, once there may be some.
  void resume_waiting();
  void keep_pool_filled();

  uint64_t slot(const Operation& operation) const {
    return static_cast<uint64_t>(&operation - operations_.data());
  }
  void expect(bool posted);
  bool is_fit(std::string_view key, std::string_view value);
  void refuse(Status status);
  void damaged(uint64_t offset_bytes);
  // Until something is done, or may be.
  void wait();
  void count(Kind kind);

  RemoteRegion* region_;
  const Layout layout_;
  const NodeSpace nodes_;
  const HashtableOptions options_;
  const uint32_t pending_limit_;
  const bool buffers_;             // answers updates before they are published
  const uint32_t last_operation_;  // its number
  const uint32_t pool_room_;       // for what pending operations and an exchange may give
  SpareNodes pool_;
  // With a hot area one more, for a demotion, and behind it those that carry strays.
  std::vector<Operation> operations_;
  std::vector<char> entries_;  // their nodes
  BucketTurns turns_;
  std::optional<HotArea> hot_;
  bool demotes_ = false;
  std::vector<uint32_t> free_;              // operations
  std::vector<uint32_t> waiting_;           // operations, for nodes, in turn
  uint32_t changing_ = 0;                   // operations that write, and give nodes back then
  std::vector<HashtableReply> finished_;    // without a value
  std::vector<char> copy_;                  // a node that is copied
  std::vector<uint32_t> free_write_backs_;  // operations, as free_
  std::vector<uint32_t> acknowledged_;      // operations that are done, but not replied
  size_t deliverable_ = 0;                  // of these, by this poll
  uint32_t collected_ = 0;
  bool is_alone_ = false;  // an operation is called, and no other one can come
  bool closing_ = false;   // nothing is pending, and nodes only go back
  mutable HashtableStatistics statistics_;
  Status status_;
  Status refusal_;
  const Status full_;
  const Status crowded_;
  const Status no_copy_;
  const Status* error_ = &refusal_;
};

}  // namespace verbena::hashtable
