"""The ledger: all tables, the guard of tenants' balances, the arbiter's row."""

import sqlalchemy as sa
from alembic import op

from gateway.ledger.migrations.first import guard, seed
from sqlalchemy.dialects.postgresql import JSONB

revision = '0001'
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('arbiter',
    sa.Column('id', sa.Integer(), server_default='1', nullable=False),
    sa.Column('epoch', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('holder', sa.String(), server_default='', nullable=False),
    sa.Column('beat', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_table('audit',
    sa.Column('id', sa.BigInteger(), sa.Identity(always=False), nullable=False),
    sa.Column('at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('principal', sa.String(), nullable=False),
    sa.Column('tenant_id', sa.Integer(), nullable=True),
    sa.Column('action', sa.String(), nullable=False),
    sa.Column('target', sa.String(), nullable=False),
    sa.Column('reason', sa.String(), server_default='', nullable=False),
    sa.Column('before', JSONB(none_as_null=True), nullable=True),
    sa.Column('after', JSONB(none_as_null=True), nullable=True),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_table('backends',
    sa.Column('name', sa.String(length=63), nullable=False),
    sa.Column('kind', sa.String(), nullable=False),
    sa.Column('config', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('draining', sa.Boolean(), server_default='false', nullable=False),
    sa.Column('dark_since', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('seen_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('problem', sa.String(), server_default='', nullable=False),
    sa.Column('misconfigured', sa.String(), server_default='', nullable=False),
    sa.Column('version', sa.Integer(), server_default='1', nullable=False),
    sa.PrimaryKeyConstraint('name')
    )
    op.create_table('decisions',
    sa.Column('id', sa.BigInteger(), sa.Identity(always=False), nullable=False),
    sa.Column('at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('epoch', sa.BigInteger(), nullable=False),
    sa.Column('job_id', sa.Uuid(), nullable=True),
    sa.Column('attempt_id', sa.String(), nullable=True),
    sa.Column('kind', sa.String(), nullable=False),
    sa.Column('token', sa.String(), nullable=False),
    sa.Column('data', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('applied', sa.Boolean(), server_default='true', nullable=False),
    sa.Column('snapshot', sa.String(), server_default='', nullable=False),
    sa.Column('now_ms', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('policy', sa.String(), server_default='', nullable=False),
    sa.Column('config', sa.String(), server_default='', nullable=False),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index('decisions_by_job', 'decisions', ['job_id', 'id'], unique=False)
    op.create_table('entries',
    sa.Column('id', sa.BigInteger(), sa.Identity(always=False), nullable=False),
    sa.Column('at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('transaction_id', sa.BigInteger(), nullable=False),
    sa.Column('account_id', sa.Integer(), nullable=False),
    sa.Column('amount', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('pending', sa.Boolean(), server_default='false', nullable=False),
    sa.PrimaryKeyConstraint('id', 'at'),
    postgresql_partition_by='RANGE (at)'
    )
    op.create_index('entries_by_account', 'entries', ['account_id', 'id'], unique=False)
    op.create_index('entries_by_transaction', 'entries', ['transaction_id'], unique=False)
    op.create_table('events',
    sa.Column('id', sa.BigInteger(), sa.Identity(always=False), nullable=False),
    sa.Column('at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('job_id', sa.Uuid(), nullable=False),
    sa.Column('attempt_id', sa.String(), nullable=True),
    sa.Column('tenant_id', sa.Integer(), nullable=False),
    sa.Column('kind', sa.String(), nullable=False),
    sa.Column('reason', sa.String(), server_default='', nullable=False),
    sa.Column('data', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.PrimaryKeyConstraint('id', 'at'),
    postgresql_partition_by='RANGE (at)'
    )
    op.create_index('events_by_job', 'events', ['job_id', 'id'], unique=False)
    op.create_table('flavors',
    sa.Column('name', sa.String(length=63), nullable=False),
    sa.Column('accelerator', sa.String(), server_default='', nullable=False),
    sa.Column('accelerator_memory', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('capacity_type', sa.String(), server_default='on_demand', nullable=False),
    sa.Column('zone', sa.String(), server_default='', nullable=False),
    sa.Column('price', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('labels', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('version', sa.Integer(), server_default='1', nullable=False),
    sa.PrimaryKeyConstraint('name')
    )
    op.create_table('idempotency_keys',
    sa.Column('tenant_id', sa.Integer(), nullable=False),
    sa.Column('key', sa.String(length=255), nullable=False),
    sa.Column('body_digest', sa.LargeBinary(), nullable=False),
    sa.Column('job_id', sa.Uuid(), nullable=False),
    sa.Column('created_at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.PrimaryKeyConstraint('tenant_id', 'key')
    )
    op.create_index(op.f('ix_idempotency_keys_job_id'), 'idempotency_keys', ['job_id'], unique=False)
    op.create_table('observations',
    sa.Column('id', sa.BigInteger(), sa.Identity(always=False), nullable=False),
    sa.Column('at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('attempt_id', sa.String(), nullable=False),
    sa.Column('backend', sa.String(), nullable=False),
    sa.Column('phase', sa.String(), nullable=False),
    sa.Column('data', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.PrimaryKeyConstraint('id', 'at'),
    postgresql_partition_by='RANGE (at)'
    )
    op.create_index('observations_by_attempt', 'observations', ['attempt_id', 'id'], unique=False)
    op.create_table('outbox',
    sa.Column('id', sa.BigInteger(), sa.Identity(always=False), nullable=False),
    sa.Column('kind', sa.String(), nullable=False),
    sa.Column('target', sa.String(), nullable=False),
    sa.Column('data', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('tries', sa.Integer(), server_default='0', nullable=False),
    sa.Column('error', sa.String(), server_default='', nullable=False),
    sa.Column('created_at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('due_at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('done_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index('outbox_by_target', 'outbox', ['target', 'kind'], unique=False)
    op.create_index('outbox_due', 'outbox', ['due_at'], unique=False, postgresql_where=sa.text('done_at IS NULL'))
    op.create_table('overrides',
    sa.Column('id', sa.Integer(), sa.Identity(always=False), nullable=False),
    sa.Column('attempt_id', sa.String(), nullable=False),
    sa.Column('force', sa.Boolean(), nullable=False),
    sa.Column('reason', sa.String(), nullable=False),
    sa.Column('principal', sa.String(), nullable=False),
    sa.Column('expires_at', sa.TIMESTAMP(timezone=True), nullable=False),
    sa.Column('created_at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index(op.f('ix_overrides_attempt_id'), 'overrides', ['attempt_id'], unique=False)
    op.create_table('snapshots',
    sa.Column('digest', sa.String(), nullable=False),
    sa.Column('base', sa.String(), nullable=True),
    sa.Column('data', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.PrimaryKeyConstraint('digest')
    )
    op.create_table('tenants',
    sa.Column('id', sa.Integer(), sa.Identity(always=False), nullable=False),
    sa.Column('path', sa.String(length=255), nullable=False),
    sa.Column('parent_id', sa.Integer(), nullable=True),
    sa.Column('active', sa.Boolean(), server_default='true', nullable=False),
    sa.Column('contact', sa.String(), server_default='', nullable=False),
    sa.Column('queue_limit', sa.Integer(), nullable=True),
    sa.Column('shedding', sa.Boolean(), server_default='false', nullable=False),
    sa.Column('version', sa.Integer(), server_default='1', nullable=False),
    sa.Column('created_at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.ForeignKeyConstraint(['parent_id'], ['tenants.id'], ),
    sa.PrimaryKeyConstraint('id'),
    sa.UniqueConstraint('path')
    )
    op.create_table('transactions',
    sa.Column('id', sa.BigInteger(), sa.Identity(always=False), nullable=False),
    sa.Column('cause', sa.String(length=255), nullable=False),
    sa.Column('kind', sa.String(), nullable=False),
    sa.Column('at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('data', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.PrimaryKeyConstraint('id'),
    sa.UniqueConstraint('cause')
    )
    op.create_index('transactions_burned', 'transactions', ['id'], unique=False, postgresql_where=sa.text("kind = 'credit_burned'"))
    op.create_table('accounts',
    sa.Column('id', sa.Integer(), sa.Identity(always=False), nullable=False),
    sa.Column('kind', sa.String(), nullable=False),
    sa.Column('tenant_id', sa.Integer(), nullable=True),
    sa.Column('flavor', sa.String(), server_default='', nullable=False),
    sa.Column('unit', sa.String(), nullable=False),
    sa.Column('posted', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('pending', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('version', sa.Integer(), server_default='1', nullable=False),
    sa.ForeignKeyConstraint(['tenant_id'], ['tenants.id'], ),
    sa.PrimaryKeyConstraint('id'),
    sa.UniqueConstraint('kind', 'tenant_id', 'flavor', 'unit', postgresql_nulls_not_distinct=True)
    )
    op.create_table('borrowings',
    sa.Column('id', sa.BigInteger(), sa.Identity(always=False), nullable=False),
    sa.Column('lease_id', sa.String(), nullable=False),
    sa.Column('lender_id', sa.Integer(), nullable=False),
    sa.Column('borrower_id', sa.Integer(), nullable=False),
    sa.Column('flavor', sa.String(), nullable=False),
    sa.Column('amount', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('since', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('until', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.ForeignKeyConstraint(['borrower_id'], ['tenants.id'], ),
    sa.ForeignKeyConstraint(['lender_id'], ['tenants.id'], ),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index(op.f('ix_borrowings_lease_id'), 'borrowings', ['lease_id'], unique=False)
    op.create_table('budgets',
    sa.Column('tenant_id', sa.Integer(), nullable=False),
    sa.Column('unit', sa.String(), nullable=False),
    sa.Column('amount', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('period_s', sa.Integer(), server_default='2592000', nullable=False),
    sa.Column('spent_before', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('period_started_at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('version', sa.Integer(), server_default='1', nullable=False),
    sa.ForeignKeyConstraint(['tenant_id'], ['tenants.id'], ),
    sa.PrimaryKeyConstraint('tenant_id', 'unit')
    )
    op.create_table('class_allowances',
    sa.Column('tenant_id', sa.Integer(), nullable=False),
    sa.Column('klass', sa.String(), nullable=False),
    sa.Column('gpu_ms', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('period_s', sa.Integer(), server_default='2592000', nullable=False),
    sa.Column('used_gpu_ms', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('period_started_at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('version', sa.Integer(), server_default='1', nullable=False),
    sa.ForeignKeyConstraint(['tenant_id'], ['tenants.id'], ),
    sa.PrimaryKeyConstraint('tenant_id', 'klass')
    )
    op.create_table('credits',
    sa.Column('victim_attempt', sa.String(), nullable=False),
    sa.Column('preemption', sa.String(), nullable=False),
    sa.Column('tenant_id', sa.Integer(), nullable=False),
    sa.Column('flavor', sa.String(), nullable=False),
    sa.Column('gpu_ms', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('terms', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('expires_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('burned_gpu_ms', sa.BigInteger(), server_default='0', nullable=False),
    sa.ForeignKeyConstraint(['tenant_id'], ['tenants.id'], ),
    sa.PrimaryKeyConstraint('victim_attempt', 'preemption')
    )
    op.create_index(op.f('ix_credits_tenant_id'), 'credits', ['tenant_id'], unique=False)
    op.create_table('grants',
    sa.Column('id', sa.Integer(), sa.Identity(always=False), nullable=False),
    sa.Column('tenant_id', sa.Integer(), nullable=False),
    sa.Column('flavor', sa.String(), nullable=False),
    sa.Column('resource', sa.String(), server_default='accelerators', nullable=False),
    sa.Column('delta_min', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('delta_max', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('reclaimable', sa.Boolean(), server_default='true', nullable=False),
    sa.Column('starts_at', sa.TIMESTAMP(timezone=True), nullable=False),
    sa.Column('ends_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('recurrence', JSONB(none_as_null=True), nullable=True),
    sa.Column('cause', sa.String(), server_default='', nullable=False),
    sa.Column('approver', sa.String(), server_default='', nullable=False),
    sa.Column('created_at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('revoked_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.ForeignKeyConstraint(['flavor'], ['flavors.name'], ),
    sa.ForeignKeyConstraint(['tenant_id'], ['tenants.id'], ),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index(op.f('ix_grants_tenant_id'), 'grants', ['tenant_id'], unique=False)
    op.create_table('jobs',
    sa.Column('id', sa.Uuid(), nullable=False),
    sa.Column('tenant_id', sa.Integer(), nullable=False),
    sa.Column('principal', sa.String(), nullable=False),
    sa.Column('name', sa.String(), nullable=False),
    sa.Column('kind', sa.String(), nullable=False),
    sa.Column('klass', sa.String(), nullable=False),
    sa.Column('spec', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('request', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('labels', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('state', sa.String(), server_default='QUEUED', nullable=False),
    sa.Column('reason', sa.String(), server_default='', nullable=False),
    sa.Column('message', sa.String(), server_default='', nullable=False),
    sa.Column('pending', JSONB(none_as_null=True), nullable=True),
    sa.Column('exit_code', sa.Integer(), nullable=True),
    sa.Column('version', sa.Integer(), server_default='1', nullable=False),
    sa.Column('attempts', sa.Integer(), server_default='0', nullable=False),
    sa.Column('failures', sa.Integer(), server_default='0', nullable=False),
    sa.Column('preemptions', sa.Integer(), server_default='0', nullable=False),
    sa.Column('revocations', sa.Integer(), server_default='0', nullable=False),
    sa.Column('no_progress', sa.Integer(), server_default='0', nullable=False),
    sa.Column('want_cancel', sa.Boolean(), server_default='false', nullable=False),
    sa.Column('want_hold', sa.Boolean(), server_default='false', nullable=False),
    sa.Column('want_checkpoint', sa.Integer(), server_default='0', nullable=False),
    sa.Column('want_size', JSONB(none_as_null=True), nullable=True),
    sa.Column('want_size_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('not_before', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('array_size', sa.Integer(), nullable=True),
    sa.Column('array_ended', sa.Integer(), server_default='0', nullable=False),
    sa.Column('array_failed', sa.Integer(), server_default='0', nullable=False),
    sa.Column('submitted_at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('started_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('ended_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.ForeignKeyConstraint(['tenant_id'], ['tenants.id'], ),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index('jobs_arrays', 'jobs', ['id'], unique=False, postgresql_where=sa.text('array_size IS NOT NULL AND ended_at IS NULL'))
    op.create_index('jobs_by_tenant', 'jobs', ['tenant_id', 'submitted_at', 'id'], unique=False)
    op.create_index('jobs_by_time', 'jobs', ['submitted_at', 'id'], unique=False)
    op.create_index('jobs_queued', 'jobs', ['submitted_at'], unique=False, postgresql_where=sa.text("state = 'QUEUED'"))
    op.create_table('leases',
    sa.Column('id', sa.Uuid(), nullable=False),
    sa.Column('tenant_id', sa.Integer(), nullable=False),
    sa.Column('job_id', sa.Uuid(), nullable=False),
    sa.Column('attempt_id', sa.String(), nullable=False),
    sa.Column('state', sa.String(), server_default='held', nullable=False),
    sa.Column('contingent_on', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('items', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('loans', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('klass', sa.String(), server_default='P2', nullable=False),
    sa.Column('gpu_milli', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('price', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('used_ms', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('held_ms', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('payer', sa.String(), server_default='', nullable=False),
    sa.Column('held_gpu_ms', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('held_money', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('accrued_until', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('covers_until', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('version', sa.Integer(), server_default='1', nullable=False),
    sa.Column('created_at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('resolved_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.ForeignKeyConstraint(['tenant_id'], ['tenants.id'], ),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index(op.f('ix_leases_job_id'), 'leases', ['job_id'], unique=False)
    op.create_index(op.f('ix_leases_tenant_id'), 'leases', ['tenant_id'], unique=False)
    op.create_index('leases_live', 'leases', ['attempt_id'], unique=True, postgresql_where=sa.text("state IN ('held', 'contingent')"))
    op.create_index('leases_of_attempt', 'leases', ['attempt_id'], unique=False)
    op.create_table('owners',
    sa.Column('backend', sa.String(), nullable=False),
    sa.Column('owner', sa.String(length=255), nullable=False),
    sa.Column('tenant_id', sa.Integer(), nullable=False),
    sa.Column('version', sa.Integer(), server_default='1', nullable=False),
    sa.ForeignKeyConstraint(['backend'], ['backends.name'], ),
    sa.ForeignKeyConstraint(['tenant_id'], ['tenants.id'], ),
    sa.PrimaryKeyConstraint('backend', 'owner')
    )
    op.create_index(op.f('ix_owners_tenant_id'), 'owners', ['tenant_id'], unique=False)
    op.create_table('pools',
    sa.Column('name', sa.String(length=63), nullable=False),
    sa.Column('backend', sa.String(), nullable=False),
    sa.Column('flavor', sa.String(), nullable=False),
    sa.Column('tenure', sa.String(), server_default='exclusive', nullable=False),
    sa.Column('places_nodes', sa.Boolean(), server_default='false', nullable=False),
    sa.Column('resizes', sa.Boolean(), server_default='false', nullable=False),
    sa.Column('place_first', sa.Boolean(), server_default='false', nullable=False),
    sa.Column('config', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('rested_until', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('rest_reason', sa.String(), server_default='', nullable=False),
    sa.Column('no_preemption_until', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('as_of', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('misconfigured', sa.String(), server_default='', nullable=False),
    sa.Column('version', sa.Integer(), server_default='1', nullable=False),
    sa.ForeignKeyConstraint(['backend'], ['backends.name'], ),
    sa.ForeignKeyConstraint(['flavor'], ['flavors.name'], ),
    sa.PrimaryKeyConstraint('name')
    )
    op.create_index(op.f('ix_pools_backend'), 'pools', ['backend'], unique=False)
    op.create_index(op.f('ix_pools_flavor'), 'pools', ['flavor'], unique=False)
    op.create_table('quotas',
    sa.Column('tenant_id', sa.Integer(), nullable=False),
    sa.Column('flavor', sa.String(), nullable=False),
    sa.Column('resource', sa.String(), nullable=False),
    sa.Column('min', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('max', sa.BigInteger(), nullable=True),
    sa.Column('lendable', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('version', sa.Integer(), server_default='1', nullable=False),
    sa.ForeignKeyConstraint(['flavor'], ['flavors.name'], ),
    sa.ForeignKeyConstraint(['tenant_id'], ['tenants.id'], ),
    sa.PrimaryKeyConstraint('tenant_id', 'flavor', 'resource')
    )
    op.create_table('storages',
    sa.Column('id', sa.Integer(), sa.Identity(always=False), nullable=False),
    sa.Column('tenant_id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(), nullable=False),
    sa.Column('scheme', sa.String(), nullable=False),
    sa.Column('prefix', sa.String(), nullable=False),
    sa.Column('credential', sa.String(), server_default='', nullable=False),
    sa.Column('version', sa.Integer(), server_default='1', nullable=False),
    sa.ForeignKeyConstraint(['tenant_id'], ['tenants.id'], ),
    sa.PrimaryKeyConstraint('id'),
    sa.UniqueConstraint('tenant_id', 'name')
    )
    op.create_table('tokens',
    sa.Column('id', sa.Uuid(), nullable=False),
    sa.Column('digest', sa.LargeBinary(), nullable=False),
    sa.Column('tenant_id', sa.Integer(), nullable=False),
    sa.Column('principal', sa.String(), nullable=False),
    sa.Column('role', sa.Integer(), nullable=False),
    sa.Column('attempt_id', sa.String(), nullable=True),
    sa.Column('note', sa.String(), server_default='', nullable=False),
    sa.Column('created_at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('expires_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('revoked_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.ForeignKeyConstraint(['tenant_id'], ['tenants.id'], ),
    sa.PrimaryKeyConstraint('id'),
    sa.UniqueConstraint('digest')
    )
    op.create_index(op.f('ix_tokens_attempt_id'), 'tokens', ['attempt_id'], unique=False)
    op.create_table('attempts',
    sa.Column('id', sa.String(length=63), nullable=False),
    sa.Column('job_id', sa.Uuid(), nullable=False),
    sa.Column('number', sa.Integer(), nullable=False),
    sa.Column('chunk', sa.Integer(), nullable=True),
    sa.Column('first_index', sa.Integer(), nullable=True),
    sa.Column('last_index', sa.Integer(), nullable=True),
    sa.Column('state', sa.String(), server_default='RESERVED', nullable=False),
    sa.Column('version', sa.Integer(), server_default='1', nullable=False),
    sa.Column('placed', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('lease_id', sa.Uuid(), nullable=False),
    sa.Column('handles', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('started_groups', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('resume_from', sa.String(), server_default='', nullable=False),
    sa.Column('stop_cause', sa.String(), nullable=True),
    sa.Column('stop_grace_s', sa.Integer(), nullable=True),
    sa.Column('stop_asked_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('stop_for', sa.String(), server_default='', nullable=False),
    sa.Column('stop_credit', sa.Boolean(), server_default='false', nullable=False),
    sa.Column('stop_due', JSONB(none_as_null=True), nullable=True),
    sa.Column('resize_to', JSONB(none_as_null=True), nullable=True),
    sa.Column('resized_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('checkpoint_asked', sa.Integer(), server_default='0', nullable=False),
    sa.Column('observed', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('why', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('progress', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('reason', sa.String(), server_default='', nullable=False),
    sa.Column('exit_code', sa.Integer(), nullable=True),
    sa.Column('failed_rank', sa.Integer(), nullable=True),
    sa.Column('codes', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('message', sa.String(), server_default='', nullable=False),
    sa.Column('gpu_ms', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('money', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('restart_ms', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('preemption_lost', sa.Boolean(), server_default='false', nullable=False),
    sa.Column('created_at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.Column('pending_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('started_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('noticed_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('stopping_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('ended_at', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], ),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index('attempts_by_job', 'attempts', ['job_id', 'number'], unique=False)
    op.create_index('attempts_by_waiter', 'attempts', ['stop_for'], unique=False, postgresql_where=sa.text("stop_for <> ''"))
    op.create_index('attempts_live', 'attempts', ['state'], unique=False, postgresql_where=sa.text('ended_at IS NULL'))
    op.create_index('attempts_lost', 'attempts', ['ended_at'], unique=False, postgresql_where=sa.text('preemption_lost'))
    op.create_table('checkpoints',
    sa.Column('job_id', sa.Uuid(), nullable=False),
    sa.Column('array_index', sa.Integer(), server_default='-1', nullable=False),
    sa.Column('attempt_number', sa.Integer(), nullable=False),
    sa.Column('step', sa.BigInteger(), nullable=False),
    sa.Column('url', sa.String(), nullable=False),
    sa.Column('verified', sa.Integer(), server_default='0', nullable=False),
    sa.Column('reshardable', sa.Boolean(), server_default='false', nullable=False),
    sa.Column('size', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('save_ms', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('parts', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column('at', sa.TIMESTAMP(timezone=True), server_default=sa.text('now()'), nullable=False),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], ),
    sa.PrimaryKeyConstraint('job_id', 'array_index', 'attempt_number', 'step')
    )
    op.create_table('foreign_use',
    sa.Column('pool', sa.String(), nullable=False),
    sa.Column('owner', sa.String(length=255), nullable=False),
    sa.Column('accelerators', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('cpus', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('memory', sa.BigInteger(), server_default='0', nullable=False),
    sa.ForeignKeyConstraint(['pool'], ['pools.name'], ),
    sa.PrimaryKeyConstraint('pool', 'owner')
    )
    op.create_table('nodes',
    sa.Column('pool', sa.String(), nullable=False),
    sa.Column('name', sa.String(), nullable=False),
    sa.Column('count', sa.Integer(), server_default='1', nullable=False),
    sa.Column('accelerators', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('cpus', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('memory', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('disk', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('foreign_accelerators', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('foreign_cpus', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('foreign_memory', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('foreign_disk', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('schedulable', sa.Boolean(), server_default='true', nullable=False),
    sa.Column('labels', JSONB(none_as_null=True), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.ForeignKeyConstraint(['pool'], ['pools.name'], ),
    sa.PrimaryKeyConstraint('pool', 'name')
    )
    op.create_table('tasks',
    sa.Column('job_id', sa.Uuid(), nullable=False),
    sa.Column('index', sa.Integer(), nullable=False),
    sa.Column('state', sa.String(), server_default='QUEUED', nullable=False),
    sa.Column('reason', sa.String(), server_default='', nullable=False),
    sa.Column('exit_code', sa.Integer(), nullable=True),
    sa.Column('attempts', sa.Integer(), server_default='0', nullable=False),
    sa.Column('failures', sa.Integer(), server_default='0', nullable=False),
    sa.Column('no_progress', sa.Integer(), server_default='0', nullable=False),
    sa.Column('want_cancel', sa.Boolean(), server_default='false', nullable=False),
    sa.Column('not_before', sa.TIMESTAMP(timezone=True), nullable=True),
    sa.Column('avoid_nodes', JSONB(none_as_null=True), nullable=True),
    sa.Column('attempt_id', sa.String(), nullable=True),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], ),
    sa.PrimaryKeyConstraint('job_id', 'index')
    )
    guard()
    seed()
